"""The tables and figures of the paper: what they need, the runs behind them, and our numbers beside the published ones."""
