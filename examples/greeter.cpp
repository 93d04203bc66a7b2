// One side writes a greeting into the other's memory, by an operation that owns the text until it is complete.
#include <verbena/typed.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace rdma = verbena::rdma;
namespace typed = verbena::typed;
using namespace std::chrono_literals;
using verbena::Deadline;
using verbena::Status;

namespace {

constexpr std::string_view kGreeting = "Hello, Verbena";

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);
}

template <class Value>
Value must(const char* what, verbena::Result<Value>&& result) {
  if (!result) die(what, result.error().text());
  return std::move(*result);
}
template <class Value>
Value must(const char* what, std::expected<Value, Status>&& result) {
  if (!result) die(what, verbena::error_detail());
  return std::move(*result);
}

}  // namespace

int main() {
  rdma::NodeOptions nic;
  if (const char* device = std::getenv("VERBENA_NIC")) nic.transport.device = device;  // "soft", "mlx5_0"
  const auto node = must("node", rdma::Node::open(nic));
  rdma::Options options{.transport = nic.transport, .port = 0, .node = node.get()};
  const auto listener = must("listen", rdma::Listener::start(options));
  options.port = listener->port();
  auto client = must("link", typed::Link::over(must("connect", rdma::Connection::connect(options))));
  auto server = must("link", typed::Link::over(must("accept", listener->accept(Deadline::after(20s)))));

  // The server's wall, which the client finds by its name.
  auto wall = must("region", typed::MemoryRegion<char>::allocate(*node, 64));
  if (const auto told = wall.publish("wall"); !told) die("publish", told.error().text());
  const auto there = must("find", client.find<char>("wall"));

  auto paper = must("region", typed::MemoryRegion<char>::allocate(*node, 64));
  auto text = must("take", paper.take(0, kGreeting.size()));
  if (text.copy_from(kGreeting) != Status::kOk) die("copy", verbena::error_detail());
  auto written = client.start_write(std::move(text), there);
  // Until it is complete nobody else gets these elements, and `text` is empty.
  const auto [status, back] = std::move(written).finish(Deadline::after(20s));
  if (status != Status::kOk) die("write", to_string(status));
  std::printf("completion: %s, %zu characters\n", to_string(status), back.size());

  const auto seen = must("take", wall.take(0, kGreeting.size()));
  seen.use([](std::span<const char> all) { std::printf("%.*s\n", static_cast<int>(all.size()), all.data()); });
}
