// Caught at run time: memory lasts until its last user has gone, and the node as long as the memory. So the order of
// destruction does not matter, also with an operation under way.
#include "pair.hpp"

#include <optional>

int main() {
  std::optional<demo::Pair> pair(std::in_place);
  demo::Report report;
  auto buffer = demo::must("take", pair->mine.take());
  // No message comes: it is under way when everything is torn down.
  auto receiving = pair->server.start_receive(std::move(buffer));
  report.expect("a receive", receiving.status(), demo::Status::kAgain);
  pair->mine = {};         // The region's handle,
  pair->node.reset();      // the node,
  pair->listener.reset();  // the listener,
  pair.reset();            // and then both links.
  auto [status, back, received] = std::move(receiving).finish(demo::soon());
  report.expect("the receive, when all is gone", status, demo::Status::kClosed);
  report.expect("its memory is there", back.size() == demo::Pair::kCount && back.set(999, 1) == demo::Status::kOk);
  return report.end();
}
