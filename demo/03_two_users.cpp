// Caught at run time: a region knows which of its elements are somebody's, and gives each of them to one.
#include "pair.hpp"

int main() {
  demo::Pair pair;
  demo::Report report;
  auto first = demo::must("take", pair.mine.take(0, 512));
  auto reading = pair.client.start_read(std::move(first), *pair.there().part(0, 512));
  const auto second = pair.mine.take(500, 500);
  report.expect("elements 500 to 999", second ? demo::Status::kOk : second.error(), demo::Status::kBusy);
  report.expect("elements 512 to 999", pair.mine.take(512).has_value());
  report.expect("the first half", reading.wait(demo::soon()), demo::Status::kOk);
  return report.end();
}
