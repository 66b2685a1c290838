"""Memory of one device: arithmetic on shapes, and the choices that depend on it.

role_model.py     what any engine needs, and the message of a plan that does not fit
fsdp.py           weights, training and inference under FSDP
megatron.py       the same under Megatron
roles.py          all memory of a group of devices but that of generation
generation.py     generation engines, and the load on them
engine_groups.py  ranks that form an engine
generation_choice.py  ranks per engine, size of the cache, release of memory
offloading.py     roles that leave their devices, and standby libraries
choices.py        micro-batches, recomputation and offloading, in the order of their cost
"""
