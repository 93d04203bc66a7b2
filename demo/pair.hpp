// Two ends of a connection in one process, for the programs of this directory, and how they report what happened.
#pragma once

#include <verbena/typed.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

namespace demo {

using verbena::Deadline;
using verbena::Status;
namespace rdma = verbena::rdma;
namespace typed = verbena::typed;
using Numbers = typed::Segment<std::uint64_t>;

[[nodiscard]] inline Deadline soon() { return Deadline::after(std::chrono::seconds{20}); }

/// A program of this directory can only show its point where the rest works.
template <class Value>
[[nodiscard]] Value must(const char* what, verbena::Result<Value>&& result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s: %s\n", what, result.error().text());
  std::exit(2);
}
template <class Value>
[[nodiscard]] Value must(const char* what, std::expected<Value, Status>&& result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s: %s\n", what, verbena::error_detail());
  std::exit(2);
}

/// Counts what did not end as this directory promises.
class Report {
 public:
  /// Prints a status, and its sentence where it is a refusal that `expected` names.
  void expect(const char* what, Status status, Status expected) {
    std::printf("%s: %s\n", what, to_string(status));
    if (status == expected) return;
    std::printf("  expected: %s; the library says: %s\n", to_string(expected), verbena::error_detail());
    ++surprises_;
  }
  void expect(const char* what, bool holds) {
    std::printf("%s: %s\n", what, holds ? "yes" : "no");
    if (!holds) ++surprises_;
  }
  /// For `main`.
  [[nodiscard]] int end() const { return surprises_ == 0 ? 0 : 1; }

 private:
  int surprises_ = 0;
};

/// A node, and a connection of it with itself. VERBENA_NIC chooses the NIC.
struct Pair {
  static constexpr std::size_t kCount = 1000;

  std::unique_ptr<rdma::Node> node;
  std::unique_ptr<rdma::Listener> listener;
  typed::Link client;
  typed::Link server;
  typed::MemoryRegion<std::uint64_t> mine;    ///< The client's, of kCount elements.
  typed::MemoryRegion<std::uint64_t> theirs;  ///< The server's, which the client may read and write.

  Pair() {
    rdma::NodeOptions nic;
    if (const char* const device = std::getenv("VERBENA_NIC")) nic.transport.device = device;
    node = must("node", rdma::Node::open(nic));
    rdma::Options options{.transport = nic.transport, .port = 0, .node = node.get()};
    listener = must("listen", rdma::Listener::start(options));
    options.port = listener->port();
    client = must("link", typed::Link::over(must("connect", rdma::Connection::connect(options))));
    server = must("link", typed::Link::over(must("accept", listener->accept(soon()))));
    mine = must("region", typed::MemoryRegion<std::uint64_t>::allocate(*node, kCount));
    theirs = must("region", typed::MemoryRegion<std::uint64_t>::allocate(*node, kCount));
  }
  /// All of the server's memory, as the client reaches it.
  [[nodiscard]] typed::RemoteSegment<std::uint64_t> there() const {
    return must("window", typed::RemoteSegment<std::uint64_t>::of(theirs.window()));
  }
};

}  // namespace demo
