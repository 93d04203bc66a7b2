// Caught at run time: a receive that is started has its segment. Until the message is there, the program's own segment
// is empty, and nobody else can take its elements.
#include "pair.hpp"

int main() {
  demo::Pair pair;
  demo::Report report;
  auto inbox = demo::must("take", pair.mine.take(0, 8));
  auto receiving = pair.server.start_receive(std::move(inbox));
  // NOLINTNEXTLINE(bugprone-use-after-move): what the compiler lets pass is refused by the library.
  report.expect("to write into the posted receive", inbox.set(0, 1), demo::Status::kOutOfRange);
  const auto around = pair.mine.take(7, 1);
  report.expect("to take its memory by another way", around ? demo::Status::kOk : around.error(), demo::Status::kBusy);
  auto words = demo::must("take", pair.mine.take(100, 8));
  words.fill(7);
  report.expect("a message", pair.client.send(words), demo::Status::kOk);
  const auto [status, back, received] = std::move(receiving).finish(demo::soon());
  report.expect("the receive", status, demo::Status::kOk);
  report.expect("it is whole", received.count == 8 && back.get(0) == 7u && back.get(7) == 7u);
  return report.end();
}
