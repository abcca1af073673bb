"""A Cerebro cluster on AWS from one file: created, paused, resumed, looked at and deleted.

What is to be (`clusterfile`, read by `reading`) and what is (`world`, seen by `observing`) decide which of the steps of
`steps` or `removing` are needed; `actions` takes them. What eksctl, CloudFormation and helm are given is data, in
``data``, filled in by `manifests`. Nothing is remembered between two commands but what AWS and the cluster themselves
answer: so a command that failed or was interrupted is continued by giving it again, from any machine.

boto3 has one door (`aws`), executables have one (`runner`). Nothing here is imported by a service.
"""
