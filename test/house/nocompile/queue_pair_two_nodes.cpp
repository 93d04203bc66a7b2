// And of one.
// expect: no matching|constraint
#include <verbena/queue_pair.hpp>

using namespace verbena;

auto make(const rdma::Node& node) {
#ifdef WRONG
  return typed::QueuePairBuilder<typed::Rc>().on(node).on(node).prepare();
#else
  return typed::QueuePairBuilder<typed::Rc>().on(node).prepare();
#endif
}
