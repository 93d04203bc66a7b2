// Caught at run time: a remote segment has a length. An access outside of it is refused before it is posted, and the
// connection lives on.
#include "pair.hpp"

int main() {
  demo::Pair pair;
  demo::Report report;
  auto one = demo::must("take", pair.mine.take(0, 1));
  const auto table = demo::must("part", pair.there().part(0, 100));
  const auto beyond = table.part(100, 1);
  report.expect("element 100 of 100", beyond ? demo::Status::kOk : beyond.error(), demo::Status::kOutOfRange);
  auto many = demo::must("take", pair.mine.take(1, 101));
  report.expect("101 elements into 100", pair.client.write(many, table), demo::Status::kBadArgument);
  // Also where somebody has made the numbers of a window up.
  demo::rdma::Window forged = pair.theirs.window();
  forged.length += 8;
  const auto behind =
      demo::must("forged", demo::typed::RemoteSegment<std::uint64_t>::of(forged, demo::Pair::kCount, 1));
  report.expect("a window with a forged length", pair.client.write(one, behind), demo::Status::kOutOfRange);
  report.expect("the connection lives", pair.client.is_connected());
  report.expect("element 99", pair.client.write(one, *table.part(99, 1)), demo::Status::kOk);
  return report.end();
}
