"""A Cerebro cluster on AWS from one file: created, paused, resumed, looked at and deleted.

`clusterfile` reads what is asked for, `world` sees what there is, each of `steps` does what is left of its part, and
`actions` takes them. What eksctl, CloudFormation and helm are given is ``data``, filled in by `manifests`. boto3, which
reads, has one door (`aws`); executables, which change things, have one (`runner`). No service imports any of it.
"""
