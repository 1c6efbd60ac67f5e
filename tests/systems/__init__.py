"""Tests on real systems, all on one machine: hosts with their own network, with Slurm, Grid Engine and SSH."""
