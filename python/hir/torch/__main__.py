"""Prints the table of operators that the importer knows."""

import sys

from ._table import table

sys.stdout.write(table() + "\n")
