"""The paper's tables as data, the runs behind each cell, and tests of its claims."""
