// Caught at run time: an operation has its memory. Who gives it up leaves the memory in quarantine until the NIC is
// done.
#include "pair.hpp"

int main() {
  demo::Pair pair;
  demo::Report report;
  auto buffer = demo::must("take", pair.mine.take());
  {
    const auto reading = pair.client.start_read(std::move(buffer), pair.there());
    report.expect("the read is", reading.status(), demo::Status::kAgain);
  }  // Nobody waits for it: it is given up here, in the middle.
  // Nobody gets the memory before the answer is in it.
  const auto again = pair.mine.take();
  report.expect("the memory of the read that was given up", again ? demo::Status::kOk : again.error(),
                demo::Status::kBusy);
  report.expect("the NIC is done with it", pair.client.settle(demo::soon()), demo::Status::kOk);
  report.expect("now somebody else gets it", pair.mine.take().has_value());
  return report.end();
}
