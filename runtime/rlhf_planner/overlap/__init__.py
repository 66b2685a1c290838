"""Generation and inference that overlap: what it saves to begin inference before the last response
has ended. Seconds and tokens; pure."""
