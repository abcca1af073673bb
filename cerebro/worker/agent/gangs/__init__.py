"""Attempts that several workers do together (docs/decisions/0041): the agent of the worker that leads has all ranks as
its `ChildGroup`. Those of other workers are `RemoteRank`, each at the end of a connection that the other worker's agent
(`MemberRun`) has made to its `GangEndpoint`, and at whose other end is the child process.
"""
