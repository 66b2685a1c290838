"""Training with Megatron-core: layers cut over tensor ranks and distributed over pipeline
stages."""
