// A cache in front of files: the coroutines of many clients read through it in one thread. Another thread
// reads missing values from their files, while the coroutines go on, and they are stored for the others.
//
//     coro_cache [CLIENTS [READS]]     200 clients, 100 reads each
#include <verbena/coroutines_kv.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

namespace {

using namespace verbena;
using coroutine::Loop;
using coroutine::Task;
/// Bytes that were read; or why there are none.
using Found = std::expected<std::size_t, Status>;

constexpr unsigned kFiles = 40;
constexpr std::size_t kMostBytes = 1024;
/// A cache that takes longer is passed by.
constexpr std::chrono::milliseconds kPatience{50};

Deadline limit() { return Deadline::after(std::chrono::seconds{60}); }

int fail(const char* what, const char* why) {
  std::fprintf(stderr, "coro_cache: %s: %s\n", what, why);
  return EXIT_FAILURE;
}

std::string name_of(unsigned file) { return "file " + std::to_string(file); }
/// What a file has in it.
std::byte letter_of(unsigned file) { return static_cast<std::byte>('A' + file % 26); }
std::size_t length_of(unsigned file) { return 100 + 20 * file; }

/// Files, and the thread that reads them: an executor of coroutines.
class Disk {
 public:
  explicit Disk(std::filesystem::path where) : where_(std::move(where)) {}
  ~Disk() {
    std::error_code ignored;
    std::filesystem::remove_all(where_, ignored);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  [[nodiscard]] bool fill() const {
    for (unsigned file = 0; file < kFiles; ++file) {
      std::ofstream out(where_ / name_of(file), std::ios::binary);
      out << std::string(length_of(file), static_cast<char>(letter_of(file)));
      if (!out.flush()) return false;
    }
    return true;
  }
  [[nodiscard]] Found read(std::string_view name, std::span<std::byte> out) const {
    std::ifstream in(where_ / name, std::ios::binary);
    if (!in) return std::unexpected(Status::kNotFound);
    in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    if (in.bad()) return std::unexpected(Status::kSystem);
    return static_cast<std::size_t>(in.gcount());
  }

  /// Has a coroutine go on in this thread.
  void post(coroutine::Resumption& resumption) noexcept {
    {
      const std::lock_guard lock(mutex_);
      resumption.next = nullptr;
      (last_ == nullptr ? first_ : last_->next) = &resumption;
      last_ = &resumption;
    }
    has_some_.notify_one();
  }
  /// It has no coroutine any more: they can go.
  void stop() {
    thread_.request_stop();
    thread_.join();
  }

 private:
  void serve(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (has_some_.wait(lock, stop, [this] { return first_ != nullptr; })) {
      coroutine::Resumption& next = *first_;
      first_ = next.next;
      if (first_ == nullptr) last_ = nullptr;
      lock.unlock();
      next.run();
      lock.lock();
    }
  }

  const std::filesystem::path where_;
  std::mutex mutex_;
  std::condition_variable_any has_some_;
  coroutine::Resumption* first_ = nullptr;
  coroutine::Resumption* last_ = nullptr;
  std::jthread thread_{[this](const std::stop_token& stop) { serve(stop); }};
};

/// What all clients have in common. Its counts are changed in the loop's thread alone.
struct Cache {
  kv::Client& store;
  Disk& disk;
  unsigned hits = 0;
  unsigned loads = 0;
  unsigned stored = 0;
};

kv::Key key_of(std::string_view name) { return std::as_bytes(std::span(name)); }

Task<Found> from_store(Loop& /*loop*/, kv::Client& store, std::string_view name, std::span<std::byte> out) {
  const kv::Outcome got = co_await coroutine::get(store, key_of(name), out);
  if (got.status != Status::kOk) co_return std::unexpected(got.status);
  co_return got.length;
}

Task<Found> from_disk(Loop& loop, Disk& disk, std::string_view name, std::span<std::byte> out) {
  co_await coroutine::resume_on(disk);  // The loop goes on with others.
  const Found read = disk.read(name, out);
  co_await coroutine::resume_on(loop);
  co_return read;
}

Task<Found> read_through(Loop& loop, Cache& cache, std::string_view name, std::span<std::byte> out) {
  // Past its time nothing is written to `out` any more, so that the file can be.
  const Found cached = co_await coroutine::within(Deadline::after(kPatience), from_store(loop, cache.store, name, out));
  if (cached) {
    ++cache.hits;
    co_return cached;
  }
  if (cached.error() != Status::kNotFound && cached.error() != Status::kTimedOut) co_return cached;
  const Found loaded = co_await from_disk(loop, cache.disk, name, out);
  if (!loaded) co_return loaded;
  ++cache.loads;
  // Version 0: there is none yet. Else another client was faster.
  const kv::Outcome stored = co_await coroutine::cas(cache.store, key_of(name), 0, out.first(*loaded), limit());
  if (stored.status == Status::kOk) {
    ++cache.stored;
  } else if (stored.status != Status::kVersionMismatch) {
    co_return std::unexpected(stored.status);
  }
  co_return loaded;
}

/// Reads some files, and looks whether they are right.
Task<Status> be_client(Loop& loop, Cache& cache, unsigned number, unsigned reads) {
  std::array<std::byte, kMostBytes> out;
  for (unsigned i = 0; i < reads; ++i) {
    const unsigned file = (number + i * (number % 7 + 1)) % kFiles;
    const std::string name = name_of(file);
    const Found found = co_await read_through(loop, cache, name, out);
    if (!found) co_return found.error();
    const auto bytes = std::span(out).first(*found);
    const bool is_right =
        bytes.size() == length_of(file) && std::ranges::count(bytes, letter_of(file)) == std::ssize(bytes);
    if (!is_right) co_return Status::kProtocol;
  }
  co_return Status::kOk;
}

int run(unsigned clients, unsigned reads) {
  std::string where = (std::filesystem::temp_directory_path() / "coro_cache_XXXXXX").string();
  if (::mkdtemp(where.data()) == nullptr) return fail("files", "no directory can be made");
  Disk disk(where);
  if (!disk.fill()) return fail("files", "they cannot be written");

  const Transport transport{.device = "soft"};
  auto server = kv::Server::start(
      {.transport = transport, .address = "127.0.0.1", .port = 0, .memory_bytes = std::size_t{8} << 20});
  if (!server) return fail("server", server.error().text());
  auto store = kv::Client::connect({.transport = transport, .address = "127.0.0.1", .port = (*server)->port()});
  if (!store) return fail("client", store.error().text());
  // A client has three coroutines at a time, each with a frame.
  auto loop = Loop::make({.frames = {.frames = 3 * clients, .frame_bytes = 2048}, .waits = 2 * clients + 1});
  if (!loop) return fail("loop", loop.error().text());

  Cache cache{.store = **store, .disk = disk};
  const std::uint64_t start = ticks_now();
  for (unsigned i = 0; i < clients; ++i)
    if (const Status spawned = (*loop)->spawn(be_client(**loop, cache, i, reads)); spawned != Status::kOk)
      return fail("spawn", to_string(spawned));
  const Status ended = (*loop)->run_until([&] { return (*loop)->spawned() == 0; }, limit());
  const double us = static_cast<double>(ticks_now() - start) / ticks_per_us();
  disk.stop();
  if (ended != Status::kOk || (*loop)->failed() != 0) return fail("clients", "not all have read what is right");
  std::printf("%u clients, %u reads each: %.0f a second; %u from the cache, %u from files, of which %u were stored\n",
              clients, reads, 1e6 * clients * reads / us, cache.hits, cache.loads, cache.stored);
  return cache.stored <= kFiles ? EXIT_SUCCESS : fail("cache", "a file was stored twice");
}

[[nodiscard]] bool number(const char* text, unsigned& into) {
  const std::string_view view(text);
  return std::from_chars(view.data(), view.data() + view.size(), into).ptr == view.data() + view.size() && into != 0;
}

}  // namespace

int main(int argc, char** argv) {
  unsigned clients = 200;
  unsigned reads = 100;
  if (argc > 3 || (argc > 1 && !number(argv[1], clients)) || (argc > 2 && !number(argv[2], reads)))
    return fail("usage", "coro_cache [CLIENTS [READS]]");
  return run(clients, reads);
}
