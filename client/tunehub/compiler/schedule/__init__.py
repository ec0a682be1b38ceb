"""The schedule of one function: the ladder of steps, the guard against wrong schedules, and shape transfer."""
