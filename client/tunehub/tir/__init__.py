"""What TIR of TVM 0.25 to 0.27 is: nodes, keys, symbols, checks of schedules, lowering."""
