"""Real systems for tests, on one machine: hosts with a network of their own, and Slurm, Grid Engine and SSH on them."""
