from rlhf_runtime.reshard.topology import Topology, this_node


def test_nodes_are_numbered_as_they_come() -> None:
    topology = Topology.from_nodes(["b", "a", "b"])
    assert topology.nodes == (0, 1, 0)
    assert topology.same_node(0, 2) and not topology.same_node(0, 1)
    assert topology.group_by_node([2, 1, 0]) == {0: [2, 0], 1: [1]}


def test_neighbours_share_a_node() -> None:
    assert Topology.regular(5, 2).nodes == (0, 0, 1, 1, 2)
    assert Topology.regular(3).nodes == (0, 0, 0)


def test_a_process_knows_its_node() -> None:
    assert this_node() == this_node() != ""
