"""Whether the Redis of this container serves."""

import os
import socket
import sys

with socket.create_connection(("localhost", int(os.environ.get("REDIS_PORT", "6379"))), timeout=3) as redis:
    redis.sendall(f"AUTH {os.environ['REDIS_PASSWORD']}\r\nPING\r\n".encode())
    lines = redis.makefile("rb")
    answers = [lines.readline().strip(), lines.readline().strip()]
sys.exit(0 if answers == [b"+OK", b"+PONG"] else f"Redis says {answers}")
