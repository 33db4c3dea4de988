"""hybridrl: asynchronous RL that lends idle trainer devices to generation."""

__version__ = "0.1.0"
