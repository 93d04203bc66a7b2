#include "api_parts.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::sim::api {

using namespace std::chrono_literals;

namespace {

/// Of a stop: goodbyes linger, and what is under way is drained.
constexpr Nanoseconds kStopTime = kLinger + 5 * kMs;

}  // namespace

void Server::run() {
  std::unique_ptr<rdma::Node> node;
  if (stage_.shape().has_node) {
    auto opened = rdma::Node::open({.transport = stage_.shape().server.transport, .shards = 2, .connections = 16});
    if (!opened) return stage_.fail(fmt::format("no node: {}", opened.error().text()));
    node = std::move(*opened);
  }
  for (unsigned i = 0; i <= stage_.shape().restarts; ++i) {
    if (stage_.is_ending) break;
    if (!serve(node.get(), i == stage_.shape().restarts)) break;
    if (!stage_.is_ending) stage_.sleep(random_.between(10 * kUs, 5 * kMs));
  }
  state_ = "ended";
}

bool Server::serve(rdma::Node* node, bool is_last) {
  rdma::Options options = stage_.shape().server;
  options.node = node;
  if (stage_.shape().is_window_shared) options.window = stage_.window();
  if (stage_.shape().has_handler) {
    options.handler = this;
    options.receive = stage_.shape().discards ? rdma::Receive::kDiscard : rdma::Receive::kHandler;
  }
  state_ = "starting";
  auto started = rdma::Listener::start(options);
  if (!started) {
    stage_.fail(fmt::format("the listener does not start: {}", started.error().text()));
    return false;
  }
  rdma::Listener& listener = **started;
  auto board = listener.register_memory(stage_.board(), rdma::Access::kAll);
  const bool is_published = board && listener.publish("board", *board);
  if (!is_published) stage_.fail("the board is not published");
  state_ = "serving";
  stage_.listens_since = stage_.now();
  stage_.tasks().wake(&stage_.listens_since);
  Thread accepting;
  if (!stage_.shape().has_handler) accepting = Thread([this, &listener] { accept(listener); });
  const Nanoseconds until = is_last ? ~Nanoseconds{0} : stage_.now() + random_.between(200 * kUs, 10 * kMs);
  while (!stage_.is_ending && stage_.now() < until) (void)stage_.tasks().sleep(&stage_.is_ending, until);
  stop(listener);
  if (accepting.joinable()) accepting.join();
  for (Thread& thread : std::exchange(threads_, {})) thread.join();
  return true;
}

void Server::stop(rdma::Listener& listener) {
  state_ = "stopping";
  const Nanoseconds begin = stage_.now();
  stage_.listens_since = 0;
  stage_.stops.push_back(begin);
  in_callbacks_ = 0;
  stage_.tell("the listener is to stop");
  listener.stop();
  stage_.tell("the listener has stopped after {} us", (stage_.now() - begin) / kUs);
  // A callback that is under way ends first.
  if (stage_.now() - begin > kStopTime + in_callbacks_ + stage_.lost_since(begin))
    stage_.fail(fmt::format("the listener took {} us to stop", (stage_.now() - begin) / kUs));
}

void Server::accept(rdma::Listener& listener) {
  for (;;) {
    const Deadline deadline = Deadline::after(5ms);
    auto accepted = listener.accept(deadline);
    if (accepted) {
      threads_.push_back(
          Thread([this, connection = std::move(*accepted)]() mutable { attend(std::move(connection)); }));
      continue;
    }
    if (accepted.error() == Status::kTimedOut) continue;
    if (accepted.error() != Status::kClosed || stage_.listens_since != 0)
      stage_.fail(fmt::format("accept returned {}", to_string(accepted.error())));
    return;
  }
}

void Server::attend(std::unique_ptr<rdma::Connection> connection) {
  Guest guest{.connection = connection.get()};
  std::vector<std::byte> buffer(kMostBytes);
  Status status = Status::kOk;
  bool goes_on = true;
  while (goes_on) {
    const Nanoseconds begin = stage_.now();
    const Deadline deadline = Deadline::after(std::chrono::microseconds(random_.between(10, 20'000)));
    auto message = connection->receive(buffer, deadline);
    status = message ? Status::kOk : message.error();
    if (guest.link != nullptr && (status == Status::kOk || status == Status::kTimedOut))
      stage_.check_call({*guest.link, *connection, true}, {.name = "receive", .deadline = deadline}, begin, status);
    if (message) goes_on = take(guest, *message);
    if (status != Status::kOk && status != Status::kTimedOut) break;
  }
  if (goes_on) {
    end(guest, status);
    if (connection->is_connected() || connection->failure() != status)
      stage_.fail(
          fmt::format("receive returned {}, and failure is {}", to_string(status), to_string(connection->failure())));
  } else {
    guest.link->server_side.leaves = stage_.now();
  }
  connection.reset();
  if (guest.link != nullptr && !goes_on) guest.link->server_side.left = stage_.now();
}

// --- with callbacks -----------------------------------------------------------------------------------------------

void Server::on_accept(rdma::Connection& connection) noexcept { guests_.push_back({.connection = &connection}); }

void Server::on_message(rdma::Connection& connection, const rdma::Message& message) noexcept {
  const Nanoseconds begin = stage_.now();
  answer_in_callback(connection, message);
  in_callbacks_ += stage_.now() - std::max(begin, stage_.last_stop());
}

void Server::answer_in_callback(rdma::Connection& connection, const rdma::Message& message) {
  const auto guest = std::ranges::find(guests_, &connection, &Guest::connection);
  if (guest == guests_.end()) return stage_.fail("a message comes before on_accept or after the end");
  if (stage_.shape().discards) return stage_.fail("a message comes that was to be dropped");
  Guest copy = *guest;  // Others come and go while it waits.
  const bool goes_on = take(copy, message);
  const auto same = std::ranges::find(guests_, &connection, &Guest::connection);
  if (same == guests_.end()) return stage_.fail("a connection ends in its own callback");
  same->link = copy.link;
  if (goes_on) return;
  copy.link->server_side.leaves = stage_.now();
  guests_.erase(same);
  connection.close();
}

void Server::on_disconnect(rdma::Connection& connection, Status reason) noexcept {
  const auto guest = std::ranges::find(guests_, &connection, &Guest::connection);
  if (guest == guests_.end()) return stage_.fail("on_disconnect of a connection that has ended");
  if (stage_.shape().discards) guest->link = stage_.find_link(connection.window());
  end(*guest, reason);
  guests_.erase(guest);
}

// --- answers ------------------------------------------------------------------------------------------------------

void Server::end(const Guest& guest, Status reason) {
  if (guest.link == nullptr) return;
  Link& link = *guest.link;
  stage_.tell("link {}: the server is told of the end: {}", link.number, to_string(reason));
  if (link.server_side.reason == Status::kOk) link.server_side.reason = reason;
  stage_.check_end(link, true, reason);
  // The server's own stop may come first, which is kClosed as well.
  const bool is_whole = reason == Status::kClosed && stage_.last_stop() < link.began;
  if (std::string wrong = stage_.shape().discards ? link.up.check_count(guest.connection->discarded(), is_whole)
                          : is_whole              ? link.up.missing()
                                                  : "";
      !wrong.empty())
    stage_.fail(fmt::format("link {}: {}", link.number, wrong));
}

bool Server::take(Guest& guest, const rdma::Message& message) {
  if (guest.link == nullptr) {
    std::uint64_t number = 0;
    if (message.data.size() == sizeof number) std::memcpy(&number, message.data.data(), sizeof number);
    guest.link = stage_.find_link(number);
    if (guest.link == nullptr) stage_.fail("the first message does not say who it is");
    return guest.link != nullptr;
  }
  Link& link = *guest.link;
  std::string wrong;
  const Stream::Note* const note = link.up.take(message, guest.connection->window(), wrong);
  if (note == nullptr) {
    stage_.fail(fmt::format("link {}: {}", link.number, wrong));
    return true;
  }
  if (note->region != nullptr && note->length != 0) {
    note->region->end_write(note->write, true);
    wrong = link.there->look(note->offset - link.base, note->length);
    if (!wrong.empty()) stage_.fail(fmt::format("link {}: a write is told of: {}", link.number, wrong));
  }
  if (note->request.kind == Request::Kind::kClose) return false;
  answer({link, *guest.connection, true}, *note);
  return true;
}

void Server::answer(const Caller& caller, const Stream::Note& note) {
  const Request request = note.request;
  switch (request.kind) {
    case Request::Kind::kNone: {
      // Writes that were over before the message are there.
      if (request.length == 0) return;
      const std::string wrong = caller.link.there->look(request.offset, request.length);
      if (!wrong.empty()) stage_.fail(fmt::format("link {}: before a message: {}", caller.link.number, wrong));
      return;
    }
    case Request::Kind::kEcho: break;
    case Request::Kind::kWrite: write(caller, request); break;
    case Request::Kind::kWriteImmediate: return write_immediate(caller, request);
    case Request::Kind::kRead: read(caller, request); break;
    case Request::Kind::kNamed: write_named(caller, request); break;
    case Request::Kind::kPhysical: use_physical(caller, request); break;
    case Request::Kind::kAdd: add(caller); break;
    case Request::Kind::kClose: return;
  }
  reply(caller, request.kind == Request::Kind::kEcho ? note.length : 16);
}

void Server::reply(const Caller& caller, std::size_t length) {
  Stream& stream = caller.link.down;
  const std::size_t place = stream.begin({.length = length});
  std::vector<std::byte> bytes(length);
  stream.fill(place, bytes);
  const Status status = stage_.call(caller, {.name = "send"}, [&] { return caller.connection.send(bytes); });
  if (std::string wrong = stream.end(place, status); !wrong.empty()) stage_.fail(std::move(wrong));
}

void Server::write(const Caller& caller, const Request& request) {
  Region& region = *caller.link.here;
  const std::uint64_t write = region.begin_write(request.offset, request.length, caller.link.number);
  std::vector<std::byte> bytes(request.length);
  region.fill(write, bytes);
  const Status status =
      stage_.call(caller, {.name = "write"}, [&] { return caller.connection.write(bytes, request.offset); });
  region.end_write(write, status == Status::kOk);
}

void Server::write_immediate(const Caller& caller, const Request& request) {
  Region& region = *caller.link.here;
  const std::uint64_t write = region.begin_write(request.offset, request.length, caller.link.number);
  std::vector<std::byte> bytes(request.length);
  region.fill(write, bytes);
  const auto immediate = static_cast<std::uint32_t>(random_.below(3));
  const std::size_t place = caller.link.down.begin({.kind = rdma::Message::Kind::kWritten,
                                                    .immediate = immediate,
                                                    .length = request.length,
                                                    .offset = request.offset,
                                                    .region = &region,
                                                    .write = write});
  const Status status = stage_.call(caller, {.name = "write_with_immediate"}, [&] {
    return caller.connection.write_with_immediate(bytes, immediate, request.offset);
  });
  status == Status::kOk ? region.accept_write(write) : region.end_write(write, false);
  if (std::string wrong = caller.link.down.end(place, status); !wrong.empty()) stage_.fail(std::move(wrong));
}

void Server::read(const Caller& caller, const Request& request) {
  Region& region = *caller.link.here;
  std::vector<std::byte> bytes(request.length);
  const std::uint64_t read = region.begin_read();
  const Status status =
      stage_.call(caller, {.name = "read"}, [&] { return caller.connection.read(bytes, request.offset); });
  if (status != Status::kOk) bytes.clear();
  if (std::string wrong = region.end_read(read, request.offset, bytes, caller.link.number); !wrong.empty())
    stage_.fail(fmt::format("link {}: the server reads: {}", caller.link.number, wrong));
}

void Server::write_named(const Caller& caller, const Request& request) {
  rdma::Window window;
  const Status found = stage_.call(caller, {.name = "find", .returns = {Status::kNotFound}}, [&] {
    auto result = caller.connection.find("mine");
    if (result) window = *result;
    return result ? Status::kOk : result.error().status();
  });
  if (found == Status::kNotFound && !caller.link.has_withdrawn) stage_.fail("a window that is published is not found");
  if (found != Status::kOk) return;
  const auto has_address = [&](const Region& region) {
    return reinterpret_cast<std::uintptr_t>(region.memory().data()) == window.address;
  };
  Region& region = *std::ranges::find_if(caller.link.named.rbegin(), caller.link.named.rend(), has_address);
  const std::uint64_t write = region.begin_write(request.offset, request.length, caller.link.number);
  std::vector<std::byte> bytes(request.length);
  region.fill(write, bytes);
  const Status status = stage_.call(caller, {.name = "write by name"}, [&] {
    return caller.connection.write(bytes, window.at(request.offset, request.length));
  });
  region.end_write(write, status == Status::kOk);
}

/// Writes, and reads it back.
void Server::use_physical(const Caller& caller, const Request& request) {
  Region& region = *caller.link.physical;
  const rdma::Physical there{reinterpret_cast<std::uintptr_t>(region.memory().data()) + request.offset};
  std::vector<std::byte> bytes(request.length);
  std::span<std::byte> rest(bytes);
  std::vector<std::uint64_t> writes;
  const std::vector<Part> parts = parts_of_physical(request.offset, request.length);
  for (const Part& part : parts) {
    writes.push_back(region.begin_write(part.offset, part.length, caller.link.number));
    region.fill(writes.back(), rest.first(part.length));
    rest = rest.subspan(part.length);
  }
  Status status =
      stage_.call(caller, {.name = "write to physical memory"}, [&] { return caller.connection.write(bytes, there); });
  for (const std::uint64_t write : writes) region.end_write(write, status == Status::kOk);
  if (status != Status::kOk) return;
  std::vector<std::uint64_t> reads(parts.size());
  for (std::uint64_t& read : reads) read = region.begin_read();
  status =
      stage_.call(caller, {.name = "read of physical memory"}, [&] { return caller.connection.read(bytes, there); });
  if (status != Status::kOk) bytes.clear();
  rest = bytes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::span<std::byte> part = rest.first(std::min(rest.size(), parts[i].length));
    const std::string wrong = region.end_read(reads[i], parts[i].offset, part, caller.link.number);
    if (!wrong.empty())
      stage_.fail(fmt::format("link {}: the server reads physical memory: {}", caller.link.number, wrong));
    rest = rest.subspan(part.size());
  }
}

void Server::add(const Caller& caller) {
  Sum& sum = caller.link.sum;
  const Sum::Add add = sum.begin(random_.between(1, 100));
  std::uint64_t old = 0;
  const Status status = stage_.call(caller, {.name = "fetch_add"}, [&] {
    auto result = caller.connection.fetch_add(caller.connection.peer_window().at(0, 8), add.delta);
    if (result) old = *result;
    return result ? Status::kOk : result.error();
  });
  if (status != Status::kOk) return;
  if (std::string wrong = sum.end(add, old); !wrong.empty()) stage_.fail(std::move(wrong));
}

}  // namespace verbena::sim::api
