"""Cerebro clusters on AWS, from one file: create, pause, resume, show, delete.

`clusterfile` reads the file, `world` reads the cluster's state from AWS, and `preflight` checks both. Each step in
`steps` does what its part still needs, and `actions` runs the steps. `manifests` fills the templates in ``data`` for
eksctl, CloudFormation and helm. boto3 is used for reading only (`aws`); executables make the changes (`runner`). Only
``cerebro cluster`` (`cerebro.cli.administration.aws`) uses this package; no service imports it.
"""
