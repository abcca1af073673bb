"""A Cerebro cluster on AWS from one file: created, paused, resumed, looked at and deleted.

What is to be (`clusterfile`, read by `reading`) and what is (`world`, seen by `observing`) are compared by `planning`,
which is pure; `steps` change the world, one part of it each, and are safe to do twice. Nothing is remembered between
two commands but what AWS and the cluster themselves answer: so a command that failed or was interrupted is continued by
giving it again, from any machine.

boto3 has one door (`aws`), executables have one (`runner`). Nothing here is imported by a service.
"""
