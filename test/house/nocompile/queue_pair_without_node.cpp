// A queue pair is of a node.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

auto make(const rdma::Node& node) {
#ifdef WRONG
  (void)node;
  return typed::QueuePairBuilder<typed::Rc>().prepare();
#else
  return typed::QueuePairBuilder<typed::Rc>().on(node).prepare();
#endif
}
