// Counts the words below a directory by N processes: each reads its share of the files, and brings every word to the
// process that owns it. Process 0 prints the TOP most frequent ones, and how many there are.
// usage: mpirun -np N mesh_words TOP DIRECTORY           compiled with -DBY_MPI; or with -DBY_PMIX, without MPI
//        mesh_words TOP DIRECTORY ID HOST:PORT...        with neither: the list of all processes, and which one this is
#if defined(BY_MPI)
#include <verbena/mesh_mpi.hpp>
#elif defined(BY_PMIX)
#include <verbena/mesh_pmix.hpp>
#else
#include <verbena/mesh.hpp>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fs = std::filesystem;
namespace mesh = verbena::mesh;
using namespace std::chrono_literals;
using verbena::Deadline;
using verbena::Status;

namespace {

using Counts = std::unordered_map<std::string, std::uint64_t>;
using Word = std::pair<std::string, std::uint64_t>;

constexpr auto kPatience = 60s;  // Some processes have longer files than others.
constexpr std::size_t kMaxLetters = 255;

[[noreturn]] void die(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  std::exit(1);  // A launcher ends the others, and they notice it, too.
}

/// The only lines that depend on how the processes were started. Says in `options` which one this is.
std::unique_ptr<mesh::Mesh> join(mesh::Options& options, [[maybe_unused]] std::span<char*> list) {
#if defined(BY_MPI)
  MPI_Init(nullptr, nullptr);
  auto carrier = mesh::mpi_carrier(MPI_COMM_WORLD, options);
#elif defined(BY_PMIX)
  auto carrier = mesh::pmix_carrier(options);
#else
  if (list.size() < 2) die("usage", "mesh_words TOP DIRECTORY ID HOST:PORT...");
  const std::vector<std::string> hosts(list.begin() + 1, list.end());
  options.id = static_cast<unsigned>(std::atoi(list[0]));
  options.processes = static_cast<unsigned>(hosts.size());
  if (options.id >= hosts.size()) die("ID", "is not in the list");
  const std::string& mine = hosts[options.id];
  const std::size_t colon = mine.rfind(':');
  options.address = mine.substr(0, colon);
  options.port = static_cast<std::uint16_t>(std::atoi(mine.c_str() + colon + 1));
  auto carrier = mesh::host_list_carrier(hosts);
#endif
  if (!carrier) die("carrier", carrier.error().text());
  auto joined = mesh::Mesh::join(options, std::move(*carrier));
  if (!joined) die("join", joined.error().text());
#if defined(BY_MPI)
  MPI_Finalize();  // The mesh needs it to join only.
#endif
  return std::move(*joined);
}

/// Which process reads a file, and which one owns a word: FNV-1a, which is the same in all of them.
unsigned owner_of(std::string_view text, unsigned processes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3;
  return static_cast<unsigned>(hash % processes);
}

/// A word is a run of ASCII letters, at most kMaxLetters of them, in either case.
void count_words(const fs::path& path, Counts& counts) {
  std::ifstream file(path, std::ios::binary);
  if (!file) die(path.c_str(), "cannot be read");
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) ++counts[word];
    word.clear();
  };
  for (std::istreambuf_iterator<char> at(file), end; at != end; ++at) {
    const char letter = static_cast<char>(*at | 0x20);
    const bool is_letter = letter >= 'a' && letter <= 'z';
    if (is_letter) word += letter;
    if (!is_letter || word.size() == kMaxLetters) end_word();
  }
  end_word();
}

/// An exchange of words between all processes, in messages that are written where the NIC takes them from.
class Exchange {
 public:
  /// Adds to `arrived` what comes to this process.
  Exchange(mesh::Lane& lane, const mesh::Options& options, Counts& arrived)
      : lane_(lane), id_(options.id), arrived_(arrived), messages_(options.processes) {}

  /// Adds so many of a word at process `to`.
  void add(unsigned to, std::string_view word, std::uint64_t count) {
    if (to == id_) {
      arrived_[std::string(word)] += count;
      return;
    }
    const Head head{count, word.size()};
    Message& message = messages_[to];
    if (!message.room.empty() && message.room.size() - message.used < sizeof head + word.size()) send(to);
    if (message.room.empty()) reserve(to);
    std::byte* const end = message.room.data() + message.used;
    std::memcpy(end, &head, sizeof head);
    std::memcpy(end + sizeof head, word.data(), word.size());
    message.used += sizeof head + word.size();
  }

  /// Waits until all words of all processes have arrived. An empty message says that no more will come.
  void finish() {
    const auto processes = static_cast<unsigned>(messages_.size());
    for (unsigned i = 1; i < processes; ++i) {
      const unsigned peer = (id_ + i) % processes;  // Not all to process 0 first.
      if (messages_[peer].used != 0) send(peer);
      if (messages_[peer].room.empty()) reserve(peer);
      send(peer);
    }
    while (ended_ + 1 < processes) take();
  }

 private:
  /// In front of each word of a message.
  struct Head {
    std::uint64_t count;
    std::uint64_t letters;
  };
  /// One that is being written.
  struct Message {
    std::span<std::byte> room{};
    std::size_t used = 0;
  };

  void reserve(unsigned to) {
    while ((messages_[to].room = lane_.reserve(to)).empty()) take();
  }

  void send(unsigned to) {
    const Message message = std::exchange(messages_[to], {});
    Status sent = Status::kAgain;  // As long as the peer has no room.
    while ((sent = lane_.commit(to, message.room.first(message.used), 0)) == Status::kAgain) take();
    if (sent != Status::kOk) die("commit", verbena::error_detail());
  }

  /// Adds what has arrived. It returns also when a call that was to be tried again may be.
  void take() {
    if (deadline_.passed()) die("exchange", "not all words have come in time");
    std::array<mesh::Completion, 16> some;
    const std::size_t count = lane_.wait(some, deadline_);
    for (const mesh::Completion& one : std::span(some).first(count)) {
      if (one.status != Status::kOk) die("a peer", to_string(one.status));
      if (one.kind != mesh::Completion::Kind::kReceive) continue;
      if (one.bytes.empty()) ++ended_;
      add_words(one.bytes);
      (void)lane_.release(one);
    }
  }

  void add_words(std::span<const std::byte> message) {
    while (!message.empty()) {
      Head head{};
      if (message.size() < sizeof head) die("a message", "ends in a number");
      std::memcpy(&head, message.data(), sizeof head);
      message = message.subspan(sizeof head);
      if (message.size() < head.letters) die("a message", "ends in a word");
      arrived_[std::string(reinterpret_cast<const char*>(message.data()), head.letters)] += head.count;
      message = message.subspan(head.letters);
    }
  }

  mesh::Lane& lane_;
  const unsigned id_;
  Counts& arrived_;
  std::vector<Message> messages_;  ///< By process.
  unsigned ended_ = 0;             ///< Processes that have said that no more will come.
  const Deadline deadline_ = Deadline::after(kPatience);
};

/// The `top` most frequent words, and of those with one count the first by alphabet.
std::vector<Word> most_frequent(const Counts& counts, std::size_t top) {
  std::vector<Word> words(counts.begin(), counts.end());
  const auto end = words.begin() + static_cast<std::ptrdiff_t>(std::min(top, words.size()));
  std::partial_sort(words.begin(), end, words.end(), [](const Word& a, const Word& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  words.erase(end, words.end());
  return words;
}

struct Sums {
  std::uint64_t read = 0;       ///< Words in the files of a process.
  std::uint64_t added = 0;      ///< Words that came to it.
  std::uint64_t different = 0;  ///< Those of them that differ.
};

std::uint64_t sum_of(const Counts& counts) {
  std::uint64_t sum = 0;
  for (const auto& [word, count] : counts) sum += count;
  return sum;
}

/// The sums of all processes. None returns before all have called it, so it separates one exchange from the next.
Sums gather(mesh::Lane& lane, unsigned processes, const Sums& mine) {
  std::vector<Sums> of_each(processes);
  const auto gathered = lane.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(of_each)),
                                    Deadline::after(kPatience));
  if (!gathered) die("gather", gathered.error().text());
  Sums all;
  for (const Sums& one : of_each) {
    all.read += one.read;
    all.added += one.added;
    all.different += one.different;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) die("usage", "mesh_words TOP DIRECTORY [ID HOST:PORT...]");
  if (!fs::is_directory(argv[2])) die(argv[2], "is no directory");
  const auto top = static_cast<std::size_t>(std::atoll(argv[1]));
  mesh::Options options;
  if (const char* device = std::getenv("VERBENA_NIC")) options.device = device;  // "soft", "mlx5_0"
  const auto joined = join(options, std::span(argv, static_cast<std::size_t>(argc)).subspan(3));
  mesh::Lane& lane = joined->lane(0);

  Counts read;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(argv[2]))
    if (entry.is_regular_file() && !entry.is_symlink() &&
        owner_of(entry.path().native(), options.processes) == options.id)
      count_words(entry.path(), read);

  Counts owned;
  Exchange to_owners(lane, options, owned);
  for (const auto& [word, count] : read) to_owners.add(owner_of(word, options.processes), word, count);
  to_owners.finish();
  const Sums sums = gather(lane, options.processes, {sum_of(read), sum_of(owned), owned.size()});
  if (sums.read != sums.added) die("sum", "words were lost on the way");

  Counts best;
  Exchange to_first(lane, options, best);
  for (const auto& [word, count] : most_frequent(owned, top)) to_first.add(0, word, count);
  to_first.finish();
  if (options.id == 0) {
    for (const auto& [word, count] : most_frequent(best, top))
      std::printf("%8llu %s\n", static_cast<unsigned long long>(count), word.c_str());
    std::printf("%llu words, %llu different ones\n", static_cast<unsigned long long>(sums.added),
                static_cast<unsigned long long>(sums.different));
  }
  // Nobody leaves while others still wait for it.
  if (const auto all = lane.barrier(Deadline::after(kPatience)); !all) die("barrier", all.error().text());
}
