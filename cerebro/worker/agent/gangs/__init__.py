"""Attempts of gangs, which span several workers (docs/decisions/0041).

The leading worker's agent has all ranks in its `ChildGroup`. Ranks on other workers are `RemoteRank` objects.
Each uses a connection that the other worker's agent (`MemberRun`) opened to the leader's `GangEndpoint`, with
the child at the other end.
"""
