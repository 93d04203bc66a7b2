// Half of a round trip between two processes: messages, and what a write and a read take.
// usage: pingpong serve [ADDRESS]      prints its port, serves one client, ends
//        pingpong PORT [ADDRESS]
#include <verbena/rdma.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <semaphore>

namespace rdma = verbena::rdma;
using verbena::Status;

namespace {

constexpr int kRounds = 10000;

int failed(const char* what, Status status) {
  std::fprintf(stderr, "%s: %s\n", what, to_string(status));
  return 1;
}

/// Runs in the listener's thread, so that an answer waits for nobody.
class Echo final : public rdma::Handler {
 public:
  void on_message(rdma::Connection& conn, const rdma::Message& message) noexcept override {
    if (const Status sent = conn.send(message.data); sent != Status::kOk) failed("send", sent);
  }
  void on_disconnect(rdma::Connection&, Status) noexcept override { gone_.release(); }
  void wait() { gone_.acquire(); }

 private:
  std::binary_semaphore gone_{0};
};

int serve(rdma::Options options) {
  Echo echo;
  options.handler = &echo;
  options.receive = rdma::Receive::kHandler;
  auto listener = rdma::Listener::start(options);
  if (!listener) return std::fprintf(stderr, "%s\n", listener.error().text()), 1;
  std::printf("%d\n", (*listener)->port());
  std::fflush(stdout);
  echo.wait();
  return 0;
}

/// Prints what one of `kRounds` calls takes, times `share`. The first call that fails is the result.
template <class Call>
Status measure(const char* what, double share, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i)
    if (const Status status = call(i); status != Status::kOk) return status;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%s: %.2f us\n", what, took.count() / kRounds * share);
  return Status::kOk;
}

int ping(const rdma::Options& options) {
  auto connected = rdma::Connection::connect(options);
  if (!connected) return std::fprintf(stderr, "%s\n", connected.error().text()), 1;
  rdma::Connection& conn = **connected;
  std::byte out[64]{}, in[64]{};

  Status status = measure("message of 64 bytes, one way", 0.5, [&](int round) {
    std::memcpy(out, &round, sizeof round);
    if (const Status sent = conn.send(out); sent != Status::kOk) return sent;
    const auto echo = conn.receive(in);
    if (!echo) return echo.error();
    return std::memcmp(in, out, sizeof in) == 0 ? Status::kOk : Status::kProtocol;
  });
  if (status != Status::kOk) return failed("message", status);
  status = measure("write of 64 bytes", 1, [&](int) { return conn.write(out); });
  if (status != Status::kOk) return failed("write", status);
  std::memset(in, 0, sizeof in);
  status = measure("read of 64 bytes", 1, [&](int) { return conn.read(in); });
  if (status != Status::kOk) return failed("read", status);
  return std::memcmp(in, out, sizeof in) == 0 ? 0 : failed("read", Status::kProtocol);
}

}  // namespace

int main(int argc, char** argv) {
  rdma::Options options;
  if (const char* device = std::getenv("VERBENA_NIC")) options.transport.device = device;  // "soft", "mlx5_0"
  if (argc > 2) options.address = argv[2];
  options.port = 0;  // Any free one.
  if (argc > 1 && std::strcmp(argv[1], "serve") == 0) return serve(options);
  if (argc > 1) return options.port = static_cast<std::uint16_t>(std::atoi(argv[1])), ping(options);
  return std::fprintf(stderr, "usage: %s serve [ADDRESS] | PORT [ADDRESS]\n", argv[0]), 2;
}
