// The mesh in C, as its users call it, between processes that are objects of this one. VERBENA_NIC chooses the NIC.
#include "chaos.hpp"
#include "device.hpp"
#include "temporary_directory.hpp"
#include "words.hpp"

#include <verbena/mesh.h>

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPatienceMs = 60'000;

mesh_options_t options_for(unsigned id, unsigned processes) {
  mesh_options_t options;
  EXPECT_EQ(mesh_options_init(&options), MESH_OK);
  options.id = id;
  options.processes = processes;
  options.device = device_under_test() != nullptr ? device_under_test() : "soft";
  options.join_timeout_ms = kPatienceMs;
  return options;
}

/// A port that nobody has now.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  socklen_t bytes = sizeof at;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), bytes), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  EXPECT_EQ(close(fd), 0);
  return ntohs(at.sin_port);
}

class MeshApi : public testing::Test {
 protected:
  ~MeshApi() override {
    for (mesh_t* mesh : meshes) EXPECT_EQ(mesh_leave(mesh), MESH_OK);
  }

  [[nodiscard]] mesh_carrier_t* carrier() const {
    mesh_carrier_t* made = nullptr;
    EXPECT_EQ(mesh_carrier_directory(directory.path().c_str(), "test", &made), MESH_OK) << mesh_error_detail();
    return made;
  }
  /// Each process by a thread; then everybody hears of everybody.
  void start(unsigned processes, const std::function<void(mesh_options_t&)>& change = {},
             const std::function<mesh_carrier_t*(unsigned)>& carrier_of = {}) {
    meshes.resize(processes);
    heard_.resize(processes);
    std::vector<std::jthread> threads;
    for (unsigned id = 0; id < processes; ++id)
      threads.emplace_back([&, id] {
        mesh_options_t options = options_for(id, processes);
        if (change) change(options);
        const int code = mesh_join(&options, carrier_of ? carrier_of(id) : carrier(), &meshes[id]);
        EXPECT_EQ(code, MESH_OK) << mesh_error_detail();
      });
    threads.clear();
    ASSERT_FALSE(HasFailure());
    for (unsigned id = 0; id < processes; ++id)
      for (unsigned news = 1; news < processes; ++news) {
        const mesh_completion_t joined = next(id);
        ASSERT_EQ(joined.kind, MESH_JOINED);
        ASSERT_EQ(joined.bytes, nullptr);
      }
  }
  [[nodiscard]] mesh_lane_t* lane(unsigned id) const { return mesh_lane(meshes[id], 0); }
  void poll(unsigned id) {
    std::array<mesh_completion_t, 3> some{};
    const int count = mesh_poll(lane(id), some.data(), some.size(), MESH_ALL);
    ASSERT_GE(count, 0) << mesh_error_detail();
    heard_[id].insert(heard_[id].end(), some.begin(), some.begin() + count);
  }
  /// What the process hears next; all poll, because a software NIC moves on by its owner's polls.
  [[nodiscard]] mesh_completion_t next(unsigned id) {
    const auto end = Clock::now() + std::chrono::milliseconds{kPatienceMs};
    while (heard_[id].empty() && Clock::now() < end)
      for (unsigned each = 0; each < meshes.size(); ++each) poll(each);
    if (heard_[id].empty()) {
      ADD_FAILURE() << "process " << id << " hears nothing";
      return {};
    }
    const mesh_completion_t first = heard_[id].front();
    heard_[id].pop_front();
    return first;
  }
  /// Calls until it is not MESH_ERR_AGAIN.
  template <class Call>
  [[nodiscard]] int patiently(Call&& call) {
    const auto end = Clock::now() + std::chrono::milliseconds{kPatienceMs};
    int code = MESH_ERR_AGAIN;
    while ((code = call()) == MESH_ERR_AGAIN && Clock::now() < end)
      for (unsigned each = 0; each < meshes.size(); ++each) poll(each);
    return code;
  }
  [[nodiscard]] mesh_window_t found(unsigned id, unsigned peer, const char* name) {
    // The owner must poll to tell of it.
    std::jthread owner([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) poll(peer);
    });
    mesh_window_t window{};
    EXPECT_EQ(mesh_find(lane(id), peer, name, kPatienceMs, &window), MESH_OK) << mesh_error_detail();
    return window;
  }
  /// A window of 4096 bytes of process 1, as process 0 finds it; `memory` is where it lies.
  [[nodiscard]] mesh_window_t published(void*& memory) {
    EXPECT_EQ(mesh_allocate(meshes[1], 4096, &memory), MESH_OK) << mesh_error_detail();
    EXPECT_EQ(mesh_publish(meshes[1], "window", memory, 4096), MESH_OK) << mesh_error_detail();
    return found(0, 1, "window");
  }
  void expect_message(unsigned id, std::string_view text, int has_immediate, std::uint32_t immediate) {
    const mesh_completion_t got = next(id);
    ASSERT_EQ(got.kind, MESH_RECEIVE);
    EXPECT_EQ(std::string_view(static_cast<const char*>(got.bytes), got.length), text);
    EXPECT_EQ(got.has_immediate, has_immediate);
    EXPECT_EQ(got.immediate, immediate);
    EXPECT_EQ(mesh_release(lane(id), &got), MESH_OK) << mesh_error_detail();
    EXPECT_EQ(mesh_release(lane(id), &got), MESH_ERR_BAD_ARGUMENT) << "twice";
  }
  void expect_ended(unsigned id, mesh_kind_t kind, std::uint64_t cookie) {
    const mesh_completion_t ended = next(id);
    EXPECT_EQ(ended.kind, kind);
    EXPECT_EQ(ended.code, MESH_OK);
    EXPECT_EQ(ended.cookie, cookie);
  }

  TemporaryDirectory directory;
  std::vector<mesh_t*> meshes;

 private:
  std::vector<std::deque<mesh_completion_t>> heard_;
};

TEST_F(MeshApi, MessagesHaveAnImmediateOrNone) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  ASSERT_EQ(mesh_send(lane(0), 1, "plain", 5, 10), MESH_OK);
  ASSERT_EQ(mesh_send_imm(lane(0), 1, "zero", 4, 11, 0), MESH_OK);
  ASSERT_EQ(mesh_send_imm(lane(0), 1, nullptr, 0, 12, ~0U), MESH_OK);
  void* room = nullptr;
  ASSERT_EQ(mesh_reserve(lane(0), 1, &room), MESH_OK);
  std::memcpy(room, "in place", 8);
  ASSERT_EQ(mesh_commit(lane(0), 1, room, 8, 13), MESH_OK);
  ASSERT_EQ(mesh_reserve(lane(0), 1, &room), MESH_OK);
  ASSERT_EQ(mesh_commit_imm(lane(0), 1, room, 0, 14, 7), MESH_OK);
  EXPECT_EQ(mesh_commit(lane(0), 1, room, 0, 15), MESH_ERR_BAD_ARGUMENT) << "it is gone";
  expect_message(1, "plain", 0, 0);
  expect_message(1, "zero", 1, 0);
  expect_message(1, "", 1, ~0U);
  expect_message(1, "in place", 0, 0);
  expect_message(1, "", 1, 7);
  for (std::uint64_t cookie = 10; cookie <= 14; ++cookie) expect_ended(0, MESH_SEND, cookie);
}

TEST_F(MeshApi, ReservationsAreGivenBackAndRunOut) {
  ASSERT_NO_FATAL_FAILURE(start(2, [](mesh_options_t& options) { options.reservations = 1; }));
  void* room = nullptr;
  ASSERT_EQ(mesh_reserve(lane(0), 1, &room), MESH_OK);
  void* another = room;
  EXPECT_EQ(mesh_reserve(lane(0), 1, &another), MESH_ERR_AGAIN);
  EXPECT_EQ(another, nullptr);
  EXPECT_EQ(std::string_view(mesh_error_detail()), std::string("mesh_reserve: ") + mesh_error_string(MESH_ERR_AGAIN));
  EXPECT_EQ(mesh_cancel(lane(0), 1, room), MESH_OK);
  EXPECT_EQ(mesh_cancel(lane(0), 1, room), MESH_ERR_BAD_ARGUMENT) << "twice";
  EXPECT_EQ(mesh_reserve(lane(0), 1, &another), MESH_OK);
  EXPECT_EQ(another, room);
}

TEST_F(MeshApi, ReadsWritesAndChangesAWindow) {
  ASSERT_NO_FATAL_FAILURE(start(3));
  void* memory = nullptr;
  const mesh_window_t window = published(memory);
  EXPECT_EQ(window.peer, 1U);
  EXPECT_EQ(window.length, 4096U);
  EXPECT_EQ(window.access, unsigned{MESH_ACCESS_REMOTE_ALL});
  ASSERT_EQ(mesh_write(lane(0), &window, 100, "written", 7, 1), MESH_OK) << mesh_error_detail();
  expect_ended(0, MESH_WRITE, 1);
  EXPECT_EQ(std::memcmp(static_cast<char*>(memory) + 100, "written", 7), 0);
  ASSERT_EQ(mesh_write_imm(lane(0), &window, 200, "told", 4, 2, 0), MESH_OK);
  const mesh_completion_t told = next(1);
  EXPECT_EQ(told.kind, MESH_WRITTEN);
  EXPECT_EQ(told.peer, 0U);
  EXPECT_EQ(told.has_immediate, 1);
  EXPECT_EQ(told.immediate, 0U);
  EXPECT_EQ(told.bytes, static_cast<char*>(memory) + 200);
  EXPECT_EQ(told.length, 4U);
  expect_ended(0, MESH_WRITE, 2);
  // Into memory of the user's own, registered and not.
  std::array<char, 4096> mine{};
  ASSERT_EQ(mesh_add(meshes[0], mine.data(), 2048, MESH_ACCESS_REMOTE_ALL), MESH_OK) << mesh_error_detail();
  for (const std::size_t at : {std::size_t{0}, std::size_t{4000}}) {
    ASSERT_EQ(mesh_read(lane(0), &window, 100, &mine[at], 7, 3), MESH_OK);
    expect_ended(0, MESH_READ, 3);
    EXPECT_EQ(std::string_view(&mine[at], 7), "written");
  }
  ASSERT_EQ(mesh_fetch_add(lane(0), &window, 8, 5, 4), MESH_OK);
  mesh_completion_t changed = next(0);
  EXPECT_EQ(changed.kind, MESH_ATOMIC);
  EXPECT_EQ(changed.old, 0U);
  ASSERT_EQ(mesh_compare_swap(lane(0), &window, 8, 5, 9, 5), MESH_OK);
  changed = next(0);
  EXPECT_EQ(changed.old, 5U);
  EXPECT_EQ(changed.cookie, 5U);
  std::uint64_t word = 0;
  std::memcpy(&word, static_cast<char*>(memory) + 8, sizeof word);
  EXPECT_EQ(word, 9U);
}

TEST_F(MeshApi, GathersByThreadsOfAll) {
  constexpr unsigned kProcesses = 3;
  // A collective call of the program's own brings them together.
  std::barrier<> meeting(kProcesses);
  struct Shared {
    std::barrier<>* meeting;
    std::array<std::array<char, MESH_BLOB_BYTES>, kProcesses> blobs;
  } shared{.meeting = &meeting, .blobs = {}};
  struct Context {
    unsigned id;
    Shared* shared;
  };
  std::array<Context, kProcesses> contexts{};
  const auto gather = [](const void* mine, void* all, std::size_t bytes_each, void* context) {
    const auto& [id, of] = *static_cast<Context*>(context);
    std::memcpy(of->blobs[id].data(), mine, bytes_each);
    of->meeting->arrive_and_wait();
    std::memcpy(all, of->blobs.data(), sizeof of->blobs);
    return bytes_each == MESH_BLOB_BYTES ? 0 : 1;
  };
  ASSERT_NO_FATAL_FAILURE(start(kProcesses, {}, [&](unsigned id) {
    contexts[id] = {.id = id, .shared = &shared};
    mesh_carrier_t* made = nullptr;
    EXPECT_EQ(mesh_carrier_gather(kProcesses, gather, &contexts[id], &made), MESH_OK) << mesh_error_detail();
    return made;
  }));
  std::vector<std::jthread> threads;
  for (unsigned id = 0; id < kProcesses; ++id)
    threads.emplace_back([&, id] {
      const std::uint32_t mine = 100 + id;
      std::array<std::uint32_t, kProcesses> all{};
      EXPECT_EQ(mesh_gather(lane(id), &mine, sizeof mine, all.data(), kPatienceMs), MESH_OK) << mesh_error_detail();
      EXPECT_EQ(all, (std::array<std::uint32_t, kProcesses>{100, 101, 102}));
      EXPECT_EQ(mesh_barrier(lane(id), -1), MESH_OK) << mesh_error_detail();
    });
  threads.clear();
  EXPECT_EQ(mesh_barrier(lane(0), 20), MESH_ERR_TIMED_OUT);
  EXPECT_NE(std::string_view(mesh_error_detail()).find("mesh_barrier: not here yet: 2 of 2 others: 1, 2"),
            std::string_view::npos)
      << mesh_error_detail();
}

TEST_F(MeshApi, AListOfHostsIsACarrier) {
  const int port = free_port();
  const std::string entry = "127.0.0.1:" + std::to_string(port);
  const std::array<const char*, 1> hosts{entry.c_str()};
  ASSERT_NO_FATAL_FAILURE(start(
      1, [&](mesh_options_t& options) { options.port = port; },
      [&](unsigned) {
        mesh_carrier_t* made = nullptr;
        EXPECT_EQ(mesh_carrier_hosts(hosts.data(), hosts.size(), &made), MESH_OK) << mesh_error_detail();
        return made;
      }));
  EXPECT_EQ(mesh_barrier(lane(0), 0), MESH_OK) << mesh_error_detail();
  const std::string description = mesh_description(meshes[0]);
  EXPECT_NE(description.find("port " + std::to_string(port)), std::string::npos) << description;
}

TEST_F(MeshApi, CountsWhatALaneDoes) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  std::array<mesh_counters_t, 2> before{};
  for (unsigned id = 0; id < 2; ++id) ASSERT_EQ(mesh_lane_counters(lane(id), &before[id]), MESH_OK);
  ASSERT_EQ(mesh_send(lane(0), 1, "count", 5, 1), MESH_OK);
  expect_message(1, "count", 0, 0);
  expect_ended(0, MESH_SEND, 1);
  std::array<mesh_counters_t, 2> after{};
  for (unsigned id = 0; id < 2; ++id) ASSERT_EQ(mesh_lane_counters(lane(id), &after[id]), MESH_OK);
  EXPECT_GT(after[0].work_requests, before[0].work_requests);
  EXPECT_GT(after[0].doorbells, before[0].doorbells);
  EXPECT_GE(after[0].bytes, before[0].bytes + 5);
  EXPECT_GT(after[0].completions, before[0].completions);
  EXPECT_GT(after[1].completions, before[1].completions);
  EXPECT_EQ(after[0].quarantined, 0U);
  EXPECT_EQ(after[0].strays, 0U);
  poll(1);
  mesh_counters_t later{};
  ASSERT_EQ(mesh_lane_counters(lane(1), &later), MESH_OK);
  EXPECT_GT(later.empty_polls + later.completions, after[1].empty_polls + after[1].completions);
}

// More completions than the library takes at a time, of one kind and then of the other.
TEST_F(MeshApi, PollsAndWaitsForMany) {
  constexpr unsigned kMessages = 70;
  ASSERT_NO_FATAL_FAILURE(start(2, [](mesh_options_t& options) { options.depth = options.operations = 100; }));
  std::array<mesh_completion_t, 100> out{};
  EXPECT_EQ(mesh_wait(lane(1), out.data(), out.size(), MESH_ALL, 1), 0);
  for (unsigned i = 0; i < kMessages; ++i) ASSERT_EQ(mesh_send(lane(0), 1, &i, sizeof i, i), MESH_OK);
  EXPECT_EQ(mesh_flush(lane(0)), MESH_OK);
  EXPECT_EQ(mesh_flush_peer(lane(0), 1), MESH_OK);
  unsigned ended = 0;
  while (ended < kMessages) {
    const int count = mesh_wait(lane(0), out.data(), out.size(), MESH_SENDS, kPatienceMs);
    ASSERT_GT(count, 0) << mesh_error_detail();
    for (int i = 0; i < count; ++i) EXPECT_EQ(out.at(static_cast<std::size_t>(i)).cookie, ended++);
  }
  EXPECT_EQ(mesh_poll(lane(1), out.data(), out.size(), MESH_SENDS), 0);
  for (unsigned got = 0; got < kMessages;) {
    const int count = mesh_wait(lane(1), out.data(), out.size(), MESH_RECEIVES, kPatienceMs);
    ASSERT_GT(count, 0) << mesh_error_detail();
    for (int i = 0; i < count; ++i, ++got) {
      unsigned number = 0;
      std::memcpy(&number, out.at(static_cast<std::size_t>(i)).bytes, sizeof number);
      EXPECT_EQ(number, got);
    }
  }
}

TEST_F(MeshApi, TellsWhoIsHereAndWhoHasLeft) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  EXPECT_EQ(mesh_is_here(lane(0), 1), 1);
  std::jthread leaving([&] { EXPECT_EQ(mesh_leave(std::exchange(meshes[1], nullptr)), MESH_OK); });
  mesh_completion_t left{};
  ASSERT_EQ(mesh_wait(lane(0), &left, 1, MESH_ALL, kPatienceMs), 1);
  leaving.join();
  EXPECT_EQ(left.kind, MESH_LEFT);
  EXPECT_EQ(left.code, MESH_ERR_CLOSED);
  EXPECT_EQ(mesh_is_here(lane(0), 1), 0);
  void* room = nullptr;
  EXPECT_EQ(mesh_reserve(lane(0), 1, &room), MESH_ERR_CLOSED);
  EXPECT_EQ(mesh_send(lane(0), 1, "x", 1, 0), MESH_ERR_CLOSED);
  EXPECT_NE(std::string_view(mesh_error_detail()).find("mesh_send: the peer has left"), std::string_view::npos);
  EXPECT_EQ(mesh_flush_peer(lane(0), 1), MESH_ERR_CLOSED);
  meshes.pop_back();
}

TEST_F(MeshApi, AForkedChildIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  mesh_lane_t* const lane_before = lane(0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    mesh_completion_t one;
    void* memory = nullptr;
    const bool is_refused = mesh_send(lane(0), 1, "x", 1, 0) == MESH_ERR_BAD_ARGUMENT &&
                            mesh_poll(lane_before, &one, 1, MESH_ALL) == MESH_ERR_FORKED &&
                            mesh_send(lane_before, 1, "x", 1, 0) == MESH_ERR_FORKED &&
                            mesh_allocate(meshes[0], 64, &memory) == MESH_ERR_FORKED &&
                            mesh_leave(meshes[0]) == MESH_ERR_FORKED;
    _exit(is_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(mesh_send(lane(0), 1, "alive", 5, 0), MESH_OK);
  expect_message(1, "alive", 0, 0);
}

// Unwinding out of the library would end the process.
TEST_F(MeshApi, ACancelledThreadEndsAfterItsCall) {
  ASSERT_NO_FATAL_FAILURE(start(2, [](mesh_options_t& options) { options.wait = MESH_WAIT_EVENT; }));
  struct Waiting {
    mesh_lane_t* lane;
    std::atomic<bool> has_begun{false};
    std::atomic<int> code{MESH_ERR_AGAIN};
  } waiting{.lane = lane(0)};
  pthread_t thread{};
  const auto wait = [](void* argument) -> void* {
    auto& of = *static_cast<Waiting*>(argument);
    of.has_begun = true;
    mesh_completion_t one;
    of.code = mesh_wait(of.lane, &one, 1, MESH_ALL, 200);
    pthread_testcancel();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, wait, &waiting), 0);
  while (!waiting.has_begun) std::this_thread::yield();
  EXPECT_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_EQ(waiting.code, 0) << "the call has returned";
  ASSERT_EQ(mesh_send(lane(0), 1, "well", 4, 0), MESH_OK);
  expect_message(1, "well", 0, 0);
}

// --- wrong arguments

struct Refused {
  const char* call;
  int code;                       ///< What the call returned.
  std::vector<std::string> says;  ///< The argument, its value, its range.
};
void expect_refused(const Refused& refused) {
  SCOPED_TRACE(refused.call);
  constexpr std::array<std::string_view, 4> kOfCxx{"::", "kClosed", "kBusy", "Lane"};
  EXPECT_EQ(refused.code, MESH_ERR_BAD_ARGUMENT);
  const std::string text = mesh_error_detail();
  const std::string front = std::string(refused.call) + ": ";
  ASSERT_TRUE(text.starts_with(front)) << text;
  expect_words(std::string_view(text).substr(front.size()), kOfCxx, refused.says);
}

#define EXPECT_REFUSED(call, arguments, ...) expect_refused({#call, call arguments, {__VA_ARGS__}})

TEST(MeshArguments, OfJoining) {
  EXPECT_REFUSED(mesh_options_init, (nullptr), "options must not be null");
  const TemporaryDirectory directory;
  const char* const path = directory.path().c_str();
  mesh_carrier_t* carrier = nullptr;
  EXPECT_REFUSED(mesh_carrier_directory, (nullptr, "job", &carrier), "directory must not be null");
  EXPECT_REFUSED(mesh_carrier_directory, (path, nullptr, &carrier), "job must not be null");
  EXPECT_REFUSED(mesh_carrier_directory, (path, "job", nullptr), "carrier must not be null");
  EXPECT_REFUSED(mesh_carrier_directory, (path, "a/b", &carrier), "job must have 1 to 64 letters", "\"a/b\"");
  EXPECT_EQ(mesh_carrier_directory("/no/such/directory", "job", &carrier), MESH_ERR_NOT_FOUND);
  const std::array<const char*, 2> hosts{"a:1", nullptr};
  const std::array<const char*, 1> portless{"a"};
  EXPECT_REFUSED(mesh_carrier_hosts, (nullptr, 2, &carrier), "hosts must not be null");
  EXPECT_REFUSED(mesh_carrier_hosts, (hosts.data(), 1, nullptr), "carrier must not be null");
  EXPECT_REFUSED(mesh_carrier_hosts, (hosts.data(), 0, &carrier), "count must be 1 to 16384; got 0");
  EXPECT_REFUSED(mesh_carrier_hosts, (hosts.data(), 2, &carrier), "hosts[1] must not be null");
  EXPECT_REFUSED(mesh_carrier_hosts, (portless.data(), 1, &carrier), "entry 0", "host:port");
  const mesh_all_gather_t fails = [](const void*, void*, std::size_t, void*) { return 17; };
  EXPECT_REFUSED(mesh_carrier_gather, (1, nullptr, nullptr, &carrier), "gather must not be null");
  EXPECT_REFUSED(mesh_carrier_gather, (1, fails, nullptr, nullptr), "carrier must not be null");
  EXPECT_REFUSED(mesh_carrier_gather, (0, fails, nullptr, &carrier), "processes must be 1 to 16384; got 0");
  EXPECT_EQ(carrier, nullptr);
  mesh_carrier_destroy(nullptr);

  mesh_t* mesh = nullptr;
  mesh_options_t options = options_for(0, 1);
  ASSERT_EQ(mesh_carrier_gather(1, fails, nullptr, &carrier), MESH_OK);
  EXPECT_EQ(mesh_join(&options, carrier, &mesh), MESH_ERR_SYSTEM);
  EXPECT_NE(std::string_view(mesh_error_detail()).find("returned 17"), std::string_view::npos) << mesh_error_detail();
  ASSERT_EQ(mesh_carrier_directory(path, "job", &carrier), MESH_OK);
  mesh_carrier_destroy(carrier);
  const auto make = [&] {
    EXPECT_EQ(mesh_carrier_directory(path, "job", &carrier), MESH_OK);
    return carrier;
  };
  EXPECT_REFUSED(mesh_join, (nullptr, make(), &mesh), "options must not be null");
  EXPECT_REFUSED(mesh_join, (&options, nullptr, &mesh), "carrier must not be null");
  EXPECT_REFUSED(mesh_join, (&options, make(), nullptr), "mesh must not be null");
  const auto refuse = [&](const char* says, auto&& spoil) {
    mesh_options_t wrong = options_for(0, 1);
    spoil(wrong);
    EXPECT_REFUSED(mesh_join, (&wrong, make(), &mesh), says);
    EXPECT_EQ(mesh, nullptr);
  };
  const std::string long_job(65, 'j');
  refuse("id must be 0 to 0; got 1", [](auto& of) { of.id = 1; });
  refuse("processes must be 1 to 16384; got 0", [](auto& of) { of.processes = 0; });
  refuse("threads must be 1 to 256; got 257", [](auto& of) { of.threads = 257; });
  refuse("job must be 0 to 64; got 65", [&](auto& of) { of.job = long_job.c_str(); });
  refuse("port must be 0 to 65535; got -1", [](auto& of) { of.port = -1; });
  refuse("message_bytes must be 1 to 16320; got 0", [](auto& of) { of.message_bytes = 0; });
  refuse("depth must be 4 to 4096; got 3", [](auto& of) { of.depth = 3; });
  refuse("operations must be 1 to 2000; got 0", [](auto& of) { of.operations = 0; });
  refuse("reservations must be 0 to 1024; got 1025", [](auto& of) { of.reservations = 1025; });
  refuse("batch must be 1 to 32; got 33", [](auto& of) { of.batch = 33; });
  refuse("wait must be 0 to 2; got 3", [](auto& of) { of.wait = static_cast<mesh_wait_policy_t>(3); });
  refuse("spin_us must be 0 to 1000000; got 1000001", [](auto& of) { of.spin_us = 1'000'001; });
  refuse("join_timeout_ms must be 1 to 86400000; got 0", [](auto& of) { of.join_timeout_ms = 0; });
  refuse("allowed_uids must not be null", [](auto& of) { of.allowed_uid_count = 1; });
}

TEST_F(MeshApi, WrongArgumentsOfTheMeshAreNamed) {
  ASSERT_NO_FATAL_FAILURE(start(1));
  mesh_t* const mesh = meshes[0];
  EXPECT_EQ(mesh_leave(nullptr), MESH_OK);
  EXPECT_STREQ(mesh_description(nullptr), "");
  EXPECT_EQ(mesh_lane(nullptr, 0), nullptr);
  EXPECT_STREQ(mesh_error_detail(), "mesh_lane: mesh must not be null");
  EXPECT_EQ(mesh_lane(mesh, 1), nullptr);
  EXPECT_STREQ(mesh_error_detail(), "mesh_lane: thread must be 0 to 0; got 1");
  void* memory = nullptr;
  EXPECT_REFUSED(mesh_allocate, (nullptr, 64, &memory), "mesh must not be null");
  EXPECT_REFUSED(mesh_allocate, (mesh, 64, nullptr), "memory must not be null");
  EXPECT_REFUSED(mesh_allocate, (mesh, 0, &memory), "bytes must be 1 to 1099511627776; got 0");
  EXPECT_EQ(memory, nullptr);
  std::array<char, 64> mine{};
  EXPECT_REFUSED(mesh_add, (nullptr, mine.data(), 64, 0), "mesh must not be null");
  EXPECT_REFUSED(mesh_add, (mesh, nullptr, 64, 0), "memory must not be null");
  EXPECT_REFUSED(mesh_add, (mesh, mine.data(), 0, 0), "bytes must be 1 to 1099511627776; got 0");
  EXPECT_REFUSED(mesh_add, (mesh, mine.data(), 64, 8), "access must be 0 to 7; got 8");
  const std::string long_name(65, 'n');
  EXPECT_REFUSED(mesh_publish, (nullptr, "n", mine.data(), 64), "mesh must not be null");
  EXPECT_REFUSED(mesh_publish, (mesh, nullptr, mine.data(), 64), "name must not be null");
  EXPECT_REFUSED(mesh_publish, (mesh, long_name.c_str(), mine.data(), 64), "name must have 1 to 64 bytes; got 65");
  EXPECT_REFUSED(mesh_publish, (mesh, "n", nullptr, 64), "memory must not be null");
  EXPECT_REFUSED(mesh_publish, (mesh, "n", mine.data(), 0), "bytes must be at least 1; got 0");
  EXPECT_EQ(mesh_publish(mesh, "n", mine.data(), 64), MESH_ERR_OUT_OF_RANGE) << "not registered";
  EXPECT_EQ(std::string_view(mesh_error_detail()).find("::"), std::string_view::npos) << mesh_error_detail();
  ASSERT_EQ(mesh_allocate(mesh, 64, &memory), MESH_OK);
  EXPECT_EQ(mesh_publish(mesh, "n", memory, 64), MESH_OK);
  EXPECT_EQ(mesh_publish(mesh, "n", memory, 64), MESH_ERR_BUSY);
}

TEST_F(MeshApi, WrongArgumentsOfMessagesAreNamed) {
  ASSERT_NO_FATAL_FAILURE(start(2, [](mesh_options_t& options) { options.message_bytes = 100; }));
  mesh_lane_t* const lane = this->lane(0);
  const std::array<char, 101> bytes{};
  const std::string peers = "peer must be 0 to 1, and not 0, which is this process; got ";
  void* room = nullptr;
  EXPECT_REFUSED(mesh_is_here, (nullptr, 1), "lane must not be null");
  EXPECT_REFUSED(mesh_is_here, (lane, 2), peers + "2");
  EXPECT_REFUSED(mesh_reserve, (nullptr, 1, &room), "lane must not be null");
  EXPECT_REFUSED(mesh_reserve, (lane, 1, nullptr), "message must not be null");
  EXPECT_REFUSED(mesh_reserve, (lane, 0, &room), peers + "0");
  ASSERT_EQ(mesh_reserve(lane, 1, &room), MESH_OK);
  EXPECT_REFUSED(mesh_commit, (nullptr, 1, room, 0, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_commit, (lane, 1, nullptr, 0, 0), "message must not be null");
  EXPECT_REFUSED(mesh_commit, (lane, 7, room, 0, 0), peers + "7");
  EXPECT_REFUSED(mesh_commit_imm, (lane, 1, static_cast<char*>(room) + 1, 0, 0, 0), "message does not begin");
  EXPECT_EQ(mesh_commit(lane, 1, room, 101, 0), MESH_ERR_TOO_LONG);
  EXPECT_STREQ(mesh_error_detail(), "mesh_commit: a message of 101 bytes; message_bytes is 100");
  EXPECT_REFUSED(mesh_cancel, (nullptr, 1, room), "lane must not be null");
  EXPECT_REFUSED(mesh_cancel, (lane, 1, nullptr), "message must not be null");
  EXPECT_REFUSED(mesh_cancel, (lane, 3, room), peers + "3");
  EXPECT_EQ(mesh_cancel(lane, 1, room), MESH_OK);
  EXPECT_REFUSED(mesh_send, (nullptr, 1, "x", 1, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_send, (lane, 1, nullptr, 1, 0), "message must not be null with a bytes of 1");
  EXPECT_REFUSED(mesh_send_imm, (lane, ~0U, "x", 1, 0, 0), peers + "4294967295");
  EXPECT_EQ(mesh_send(lane, 1, bytes.data(), bytes.size(), 0), MESH_ERR_TOO_LONG);
  EXPECT_REFUSED(mesh_flush, (nullptr), "lane must not be null");
  EXPECT_REFUSED(mesh_flush_peer, (nullptr, 1), "lane must not be null");
  EXPECT_REFUSED(mesh_flush_peer, (lane, 2), peers + "2");

  mesh_completion_t one{};
  const auto other = static_cast<mesh_which_t>(3);
  EXPECT_REFUSED(mesh_poll, (nullptr, &one, 1, MESH_ALL), "lane must not be null");
  EXPECT_REFUSED(mesh_poll, (lane, nullptr, 1, MESH_ALL), "out must not be null");
  EXPECT_REFUSED(mesh_poll, (lane, &one, 0, MESH_ALL), "count must be 1 to 65536; got 0");
  EXPECT_REFUSED(mesh_poll, (lane, &one, 1, other), "which must be", "got 3");
  EXPECT_REFUSED(mesh_wait, (nullptr, &one, 1, MESH_ALL, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_wait, (lane, &one, 1, MESH_ALL, -2), "timeout_ms must be at least 0", "got -2");
  EXPECT_REFUSED(mesh_release, (nullptr, &one), "lane must not be null");
  EXPECT_REFUSED(mesh_release, (lane, nullptr), "message must not be null");
  EXPECT_REFUSED(mesh_release, (lane, &one), "message was not returned by poll");
  const std::array<char, 65> mine{};
  std::array<char, 130> all{};
  EXPECT_REFUSED(mesh_gather, (nullptr, mine.data(), 1, all.data(), 0), "lane must not be null");
  EXPECT_REFUSED(mesh_gather, (lane, nullptr, 1, all.data(), 0), "mine must not be null with a bytes_each of 1");
  EXPECT_REFUSED(mesh_gather, (lane, mine.data(), 1, nullptr, 0), "all must not be null with a bytes_each of 1");
  EXPECT_REFUSED(mesh_gather, (lane, mine.data(), 65, all.data(), 0), "bytes_each must be 0 to 64; got 65");
  EXPECT_REFUSED(mesh_gather, (lane, mine.data(), 1, all.data(), -2), "timeout_ms must be", "got -2");
  mesh_counters_t counters{};
  EXPECT_REFUSED(mesh_lane_counters, (nullptr, &counters), "lane must not be null");
  EXPECT_REFUSED(mesh_lane_counters, (lane, nullptr), "counters must not be null");
  EXPECT_REFUSED(mesh_barrier, (nullptr, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_barrier, (lane, std::numeric_limits<int>::min()), "timeout_ms must be", "got -2147483648");
  // Nothing of that has hurt the connection.
  ASSERT_EQ(mesh_send(lane, 1, "well", 4, 0), MESH_OK);
  expect_message(1, "well", 0, 0);
}

TEST_F(MeshApi, WrongArgumentsOfWindowsAreNamed) {
  ASSERT_NO_FATAL_FAILURE(start(2));
  mesh_lane_t* const lane = this->lane(0);
  void* memory = nullptr;
  mesh_window_t window = published(memory);
  mesh_window_t found{};
  EXPECT_REFUSED(mesh_find, (nullptr, 1, "n", 0, &found), "lane must not be null");
  EXPECT_REFUSED(mesh_find, (lane, 2, "n", 0, &found), "peer must be 0 to 1", "got 2");
  EXPECT_REFUSED(mesh_find, (lane, 1, nullptr, 0, &found), "name must not be null");
  EXPECT_REFUSED(mesh_find, (lane, 1, "", 0, &found), "name must have 1 to 64 bytes; got 0");
  EXPECT_REFUSED(mesh_find, (lane, 1, "n", -2, &found), "timeout_ms must be", "got -2");
  EXPECT_REFUSED(mesh_find, (lane, 1, "n", 0, nullptr), "window must not be null");
  EXPECT_EQ(mesh_find(lane, 1, "n", 0, &found), MESH_ERR_NOT_FOUND);
  EXPECT_EQ(found.length, 0U);
  std::array<char, 8> mine{};
  EXPECT_REFUSED(mesh_write, (nullptr, &window, 0, "x", 1, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_write, (lane, nullptr, 0, "x", 1, 0), "to must not be null");
  EXPECT_REFUSED(mesh_write, (lane, &window, 0, nullptr, 1, 0), "from must not be null with a bytes of 1");
  EXPECT_REFUSED(mesh_write_imm, (lane, &window, 0, "x", 0, 0, 0), "bytes must be at least 1; got 0");
  EXPECT_EQ(mesh_write(lane, &window, 4096, "x", 1, 0), MESH_ERR_OUT_OF_RANGE);
  EXPECT_STREQ(mesh_error_detail(), "mesh_write: 1 bytes at offset 4096 of a window of 4096 bytes");
  EXPECT_REFUSED(mesh_read, (nullptr, &window, 0, mine.data(), 1, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_read, (lane, nullptr, 0, mine.data(), 1, 0), "from must not be null");
  EXPECT_REFUSED(mesh_read, (lane, &window, 0, nullptr, 1, 0), "to must not be null with a bytes of 1");
  EXPECT_REFUSED(mesh_read, (lane, &window, 0, mine.data(), 0, 0), "bytes must be at least 1; got 0");
  EXPECT_EQ(mesh_read(lane, &window, ~std::uint64_t{0}, mine.data(), 2, 0), MESH_ERR_OUT_OF_RANGE);
  EXPECT_REFUSED(mesh_fetch_add, (nullptr, &window, 0, 1, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_fetch_add, (lane, nullptr, 0, 1, 0), "at must not be null");
  EXPECT_REFUSED(mesh_fetch_add, (lane, &window, 4, 1, 0), "offset must lead to a multiple of 8; got 4");
  EXPECT_REFUSED(mesh_compare_swap, (nullptr, &window, 0, 1, 2, 0), "lane must not be null");
  EXPECT_REFUSED(mesh_compare_swap, (lane, nullptr, 0, 1, 2, 0), "at must not be null");
  EXPECT_REFUSED(mesh_compare_swap, (lane, &window, 4089, 1, 2, 0), "multiple of 8; got 4089");
  EXPECT_EQ(mesh_compare_swap(lane, &window, 4096, 1, 2, 0), MESH_ERR_OUT_OF_RANGE);
  window.peer = 0;
  EXPECT_REFUSED(mesh_read, (lane, &window, 0, mine.data(), 1, 0), "peer must be", "got 0");
  window.peer = 1;
  ASSERT_EQ(mesh_read(lane, &window, 0, mine.data(), 1, 9), MESH_OK);
  expect_ended(0, MESH_READ, 9);
}

// Each code has a sentence of its own, and the number of rdma.h.
TEST(MeshCodes, HaveSentences) {
  constexpr std::array<std::string_view, 1> kOfCxx{"::"};
  EXPECT_STREQ(mesh_error_string(MESH_OK), "success");
  for (int code = MESH_ERR_AGAIN; code >= MESH_ERR_FORKED; --code) expect_plain_words(mesh_error_string(code), kOfCxx);
  EXPECT_NE(std::string_view(mesh_error_string(MESH_ERR_AGAIN)).find("of this peer"), std::string_view::npos);
  EXPECT_STREQ(mesh_error_string(1), "no code of this library");
}

}  // namespace
}  // namespace verbena::test
