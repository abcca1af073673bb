"""The child process that runs user code: task loop, messages to the agent, sandbox.

`worker.agent.processes.process` starts `task_loop` as a program. It forks a process for each user code (`fork_server`),
which forks one for each task (`task_processes`). There a `Handler` executes the task with a `Context`. The child has no
token and no connection to the store, and decides nothing about other tasks.
"""
