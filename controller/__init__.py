"""The controller: partitions the data, assigns tasks and watches workers.

It never trains and never opens user code.
"""
