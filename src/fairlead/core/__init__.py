"""The pure core: standard library and numpy only; no clock, no randomness, no environment, no threads.

Read it in this order: types, messages, snapshot, state, plan, loop. The others are small parts of these: errors,
codec (of messages), occupancy, learning and ending (of state).
"""
