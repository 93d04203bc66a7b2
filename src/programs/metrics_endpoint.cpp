// The endpoint over libmicrohttpd.
#include "base/error.hpp"
#include "base/fd.hpp"
#include "link/socket.hpp"
#include "programs/files.hpp"
#include "programs/metrics.hpp"

#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

namespace verbena::programs {
namespace {

/// For the head of a request; libmicrohttpd's default is 32 KiB.
constexpr std::size_t kConnectionBytes = 8192;
constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

MHD_Result answer(MHD_Connection* connection, unsigned status, const std::string& body, const char* allow = nullptr) {
  MHD_Response* const response =
      MHD_create_response_from_buffer(body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, kContentType);
  if (allow != nullptr) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allow);
  const MHD_Result queued = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return queued;
}

MHD_Result answer(MHD_Connection* connection, const MetricsEndpoint& endpoint, std::string_view path,
                  std::string_view method) {
  if (path != "/metrics") return answer(connection, MHD_HTTP_NOT_FOUND, "only /metrics exists here\n");
  if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD)
    return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "/metrics takes GET and HEAD\n", "GET, HEAD");
  return answer(connection, MHD_HTTP_OK, endpoint.text());
}

// The daemon's thread calls this for a request's head, then for each part of its body, then at its end.
MHD_Result on_request(void* endpoint, MHD_Connection* connection, const char* path, const char* method, const char*,
                      const char*, std::size_t* upload_bytes, void** seen) {
  static char begun;
  if (*seen == nullptr) {
    *seen = &begun;
    return MHD_YES;
  }
  if (*upload_bytes != 0) {  // Drops a body piece by piece.
    *upload_bytes = 0;
    return MHD_YES;
  }
  try {
    return answer(connection, *static_cast<const MetricsEndpoint*>(endpoint), path, method);
  } catch (const std::bad_alloc&) {
    return MHD_NO;  // Closes the connection.
  }
}

/// The daemon then sees the end of the stream and closes the connection.
void hang_up(MHD_Connection* connection) noexcept {
  const MHD_ConnectionInfo* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info != nullptr) (void)::shutdown(info->connect_fd, SHUT_RDWR);
}

// The daemon's thread calls this when a connection begins and when it has ended.
void on_connection(void* peers, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode what) {
  auto& there = *static_cast<MetricsPeers*>(peers);
  if (what == MHD_CONNECTION_NOTIFY_CLOSED) return there.leave(connection);
  if (there.size() == MetricsEndpoint::kMostConnections) hang_up(there.take_one());
  try {
    there.enter(connection);
  } catch (const std::bad_alloc&) {
    hang_up(connection);
  }
}

Result<Fd> bind_to(const MetricsArguments& arguments, const std::string& where) {
  const addrinfo wanted{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(arguments.address.c_str(), std::to_string(*arguments.port).c_str(), &wanted, &list);
  if (failed != 0)
    return fail(Status::kBadArgument, "getaddrinfo", 0, "{} is not a numeric address, such as 127.0.0.1 or ::1: {}",
                arguments.address, ::gai_strerror(failed));
  const link::Addresses found(list, &::freeaddrinfo);
  Fd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return fail_system("socket", errno, "metrics over HTTP");
  const int yes = 1;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE)
      return fail(Status::kSystem, "bind", EADDRINUSE,
                  "the metrics port {} is in use: choose another by --metrics-port, or 0 for any free one", where);
    return fail_system("bind", errno, fmt::format("metrics at {}", where));
  }
  return socket;
}

}  // namespace

void MetricsPeers::enter(MHD_Connection* connection) {
  Address address{};
  if (const MHD_ConnectionInfo* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)) {
    if (info->client_addr->sa_family == AF_INET) {
      const in_addr& host = reinterpret_cast<const sockaddr_in*>(info->client_addr)->sin_addr;
      std::memcpy(address.data(), &host, sizeof host);
    } else if (info->client_addr->sa_family == AF_INET6) {
      const in6_addr& host = reinterpret_cast<const sockaddr_in6*>(info->client_addr)->sin6_addr;
      std::memcpy(address.data(), &host, sizeof host);
    }
  }
  ++counts_[address];  // Only this may run out of memory.
  peers_.push_back({.connection = connection, .address = address});
}

void MetricsPeers::leave(const MHD_Connection* connection) noexcept {
  const auto found = std::ranges::find(peers_, connection, &Peer::connection);
  if (found == peers_.end()) return;
  const auto count = counts_.find(found->address);
  if (--count->second == 0) counts_.erase(count);
  peers_.erase(found);
}

MHD_Connection* MetricsPeers::take_one() noexcept {
  const auto most = std::ranges::max_element(counts_, {}, [](const auto& entry) { return entry.second; });
  if (most == counts_.end()) return nullptr;
  MHD_Connection* const taken = std::ranges::find(peers_, most->first, &Peer::address)->connection;
  leave(taken);
  return taken;
}

Result<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::listen(const MetricsArguments& arguments) {
  VERBENA_ASSIGN(Fd socket, bind_to(arguments, endpoint(arguments.address, *arguments.port)));
  const std::uint16_t port = link::bound_port(socket.get());
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(socket.release(), fmt::format("http://{}/metrics", endpoint(arguments.address, port))));
}

Result<void> MetricsEndpoint::start(const kv::Server& server, unsigned workers) {
  server_ = &server;
  workers_ = workers;
  daemon_ = MHD_start_daemon(MHD_USE_AUTO_INTERNAL_THREAD, 0, nullptr, nullptr, &on_request, this,
                             MHD_OPTION_LISTEN_SOCKET, socket_, MHD_OPTION_CONNECTION_LIMIT, kMostAccepted,
                             MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                             kConnectionBytes, MHD_OPTION_NOTIFY_CONNECTION, &on_connection, &peers_, MHD_OPTION_END);
  if (daemon_ == nullptr) return fail_system("MHD_start_daemon", errno, "metrics over HTTP");
  return {};
}

MetricsEndpoint::~MetricsEndpoint() {
  // The daemon closes its own socket.
  if (daemon_ != nullptr)
    MHD_stop_daemon(daemon_);
  else
    Fd(socket_).reset();
}

}  // namespace verbena::programs
