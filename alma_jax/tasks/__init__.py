"""What a learner needs to know of the data it trains on: batches and losses."""
