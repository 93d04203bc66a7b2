// A window is opened for a peer that is known.
// expect: no member named|has no member
#include <verbena/queue_pair.hpp>

using namespace verbena;

void open(typed::Prepared<typed::Rc>& prepared, typed::Ready<typed::Rc>& ready, const rdma::Window& window) {
#ifdef WRONG
  (void)ready;
  (void)prepared.open<int>(window);
#else
  (void)prepared;
  (void)ready.open<int>(window);
#endif
}
