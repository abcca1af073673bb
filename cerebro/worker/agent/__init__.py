"""The worker's agent: registers, takes tasks from its inbox, runs each in a child process under a lease, commits.

It never decides and never opens user code. What a task means is a handler's business, named by module (`etl_worker`,
`model_hopper`) and imported by the child alone.
"""
