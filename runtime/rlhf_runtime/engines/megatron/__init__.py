"""Training with Megatron-core: layers cut over tensor ranks, and spread over pipeline stages."""
