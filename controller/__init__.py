"""The controller: partitions the data, decides who does what, watches. It never trains and never opens user code."""
