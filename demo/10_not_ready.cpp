// Caught at run time: a link is made of a connection, and connections are made connected. A link without one, or one
// that has ended, refuses every call, and gives segments back.
#include "pair.hpp"

int main() {
  demo::Pair pair;
  demo::Report report;
  demo::typed::Link none;
  auto words = demo::must("take", pair.mine.take(0, 8));
  report.expect("a send without a connection", none.send(words), demo::Status::kClosed);
  auto started = none.start_write(std::move(words), pair.there());
  report.expect("a write without a connection", started.status(), demo::Status::kClosed);
  words = demo::must("take", started.take());
  pair.client.close();
  report.expect("a send after the end", pair.client.send(words), demo::Status::kClosed);
  report.expect("the segment is there", words.size() == 8);
  return report.end();
}
