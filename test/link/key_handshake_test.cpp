// Handshakes with keys: over TCP, where anybody can stand between, change, repeat and make up what is said.
#include "base/hash.hpp"
#include "key_file.hpp"
#include "link/keys.hpp"
#include "link/seal.hpp"
#include "nic/nic.hpp"
#include "result.hpp"
#include "support.hpp"

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace verbena::link {
namespace {

using namespace test;
using namespace verbena::test;

using Bytes = std::vector<std::byte>;
/// What somebody in between does with the message of that number: 0 is the client's KEY, 5 the server's READY.
using Edit = std::function<void(int, Bytes&)>;
void no_edit(int, Bytes&) {}
constexpr int kMessages = 6;

constexpr const char* kServersFile = kTwoKeys;

std::shared_ptr<const Keys> parsed(const std::string& text) { return Keys::parse(text, "the.file").value(); }
std::shared_ptr<const Key> key_of(const std::string& text, const std::string& name = {}) {
  return parsed(text)->choose(name).value();
}

/// A changed frame gets a right checksum, which has no key.
void make_checksum(Bytes& frame) {
  if (frame.size() < kHeaderBytes + kChecksumBytes) return;
  store(frame, frame.size() - kChecksumBytes, hash64(std::span(frame).first(frame.size() - kChecksumBytes)));
}

/// A device's socket mode, where nobody is asked: keys are all there is. With `wants_nics` the software NIC's, too.
class KeyHandshake : public testing::Test {
 protected:
  void SetUp() override {
    if (!verbena::test::has_keys()) GTEST_SKIP() << "this build has no keys";
    listen(parsed(kServersFile));
  }
  void listen(std::shared_ptr<const Keys> keys, ListenerOptions options = {}) {
    options.keys = std::move(keys);
    options.nic = server_nic_.get();
    listener_ = Listener::open(options).value();
  }
  void use_software_nics() {
    server_nic_ = nic::open_soft({}).value();
    client_nic_ = nic::open_soft({}).value();
    server_end_.qp.gid = server_nic_->gid();
    client_end_.qp.gid = client_nic_->gid();
    listen(parsed(kServersFile));
  }
  [[nodiscard]] Result<std::unique_ptr<Handshake>> dial_at(std::uint16_t port, std::shared_ptr<const Key> key) const {
    return dial("127.0.0.1", port, client_end_, generous(), {.nic = client_nic_.get(), .key = std::move(key)});
  }
  /// The next client that says a whole HELLO; kRejected when one is sent away at the door instead.
  [[nodiscard]] Result<std::unique_ptr<Handshake>> next() {
    const Deadline deadline = generous();
    for (const std::uint64_t before = listener_->dropped();;) {
      auto incoming = listener_->next(Deadline::now());
      if (incoming || incoming.error().status() != Status::kAgain) return incoming;
      if (listener_->dropped() != before) return fail(Status::kRejected, "test", 0, "sent away at the door");
      if (!wait_readable(listener_->fd(), deadline)) return fail(Status::kTimedOut, "test", 0, "nobody came");
    }
  }
  /// The server's whole side; the name of the key that the client has proven.
  [[nodiscard]] Result<std::string> serve() {
    VERBENA_ASSIGN(const auto incoming, next());
    VERBENA_TRY(incoming->confirm(generous()));
    EXPECT_TRUE(same(incoming->remote(), client_end_));
    const std::string name(incoming->key_name());
    VERBENA_TRY(incoming->answer(server_end_, generous()));
    VERBENA_TRY(incoming->finish(generous()));
    return name;
  }
  [[nodiscard]] Result<void> be_client(std::uint16_t port, const std::shared_ptr<const Key>& key) const {
    VERBENA_ASSIGN(const auto dialed, dial_at(port, key));
    EXPECT_TRUE(same(dialed->remote(), server_end_));
    VERBENA_TRY(dialed->finish(generous()));
    return {};
  }
  struct Ends {
    Result<void> client;
    Result<std::string> server;
  };
  [[nodiscard]] Ends connect(const std::shared_ptr<const Key>& key, std::uint16_t port = 0) {
    if (port == 0) port = listener_->port();
    auto dialing = std::async(std::launch::async, [&] { return be_client(port, key); });
    auto served = serve();
    return {dialing.get(), std::move(served)};
  }
  [[nodiscard]] Ends connect_through(const Edit& edit) {
    const RawServer between([&](int client) {
      const Fd server = connect_raw(listener_->port());
      for (int message = 0; message < kMessages; ++message) {
        const bool is_clients = message % 2 == 0;
        if (!pass(is_clients ? client : server.get(), is_clients ? server.get() : client, message, edit)) return;
      }
    });
    return connect(key_of(kServersFile), between.port());
  }
  /// What a client comes to whose KEY is answered so: it says nothing more.
  [[nodiscard]] Result<void> answered_by(const Bytes& challenge) const {
    const RawServer imposter([&](int peer) {
      EXPECT_OK(read_frame(peer));
      send_raw(peer, challenge);
      EXPECT_STATUS(read_frame(peer), Status::kPeerLost);
    });
    return be_client(imposter.port(), key_of(kServersFile));
  }
  /// A client by hand that has named a key and holds the challenge.
  struct Challenged {
    Fd socket;
    Inbox challenge;
  };
  [[nodiscard]] Challenged challenged(const Frame& claim) {
    Challenged client{.socket = connect_raw(listener_->port()), .challenge = {}};
    send_raw(client.socket.get(), claim.bytes());
    auto reading = std::async(std::launch::async, [&] { return read_frame(client.socket.get()); });
    const Deadline deadline = generous();
    while (reading.wait_for(std::chrono::seconds(0)) != std::future_status::ready && !deadline.passed())
      EXPECT_FALSE(listener_->next(brief()));
    auto read = reading.get();
    EXPECT_OK(read);
    if (read) client.challenge = *read;
    return client;
  }
  /// The server's answer to a frame of the client by hand, which it must not take.
  [[nodiscard]] Result<void> refusal_of(const Challenged& client, std::span<const std::byte> frame) {
    send_raw(client.socket.get(), frame);
    EXPECT_STATUS(next(), Status::kRejected);
    const auto answer = read_frame(client.socket.get());
    return answer ? Result<void>() : std::unexpected(answer.error());
  }

 private:
  /// False when it ends there: a side has gone or refuses, or the length was changed and a side waits for the rest.
  static bool pass(int from, int to, int message, const Edit& edit) {
    Inbox inbox;
    const auto got = receive_frame(from, inbox, {.peer = "one side", .awaited = "a frame"}, generous());
    Bytes bytes(inbox.bytes().begin(), inbox.bytes().end());
    if (got) edit(message, bytes);
    send_raw(to, bytes);
    const auto needed = bytes_needed(bytes);
    return got.has_value() && (!needed || *needed == bytes.size());
  }

 protected:
  std::unique_ptr<nic::Nic> server_nic_, client_nic_;
  Endpoint client_end_ = make_endpoint(1), server_end_ = make_endpoint(2);
  std::unique_ptr<Listener> listener_;
};

TEST_F(KeyHandshake, BothSidesProveTheKey) {
  for (const char* name : {"new", "old"}) {  // As while keys are changed.
    const Ends ends = connect(key_of(kServersFile, name));
    EXPECT_OK(ends.client);
    ASSERT_OK(ends.server);
    EXPECT_EQ(*ends.server, name);
  }
  EXPECT_EQ(listener_->dropped(), 0U);
}

TEST_F(KeyHandshake, BesideTheNicsThatConfirm) {
  use_software_nics();
  Ends ends = connect(key_of(kServersFile));
  EXPECT_OK(ends.client);
  ASSERT_OK(ends.server);
  EXPECT_EQ(*ends.server, "new");
  ends = connect(key_of("new 00000000000000000000000000000000\n"));
  EXPECT_STATUS(ends.client, Status::kNotAllowed);
  EXPECT_STATUS(ends.server, Status::kRejected);
  ends = connect_through([](int message, Bytes& bytes) {
    if (message != 2) return;
    bytes[kHeaderBytes + kHelloFixedBytes] ^= std::byte{1};
    make_checksum(bytes);
  });
  EXPECT_STATUS(ends.client, Status::kNotAllowed);
  EXPECT_STATUS(ends.server, Status::kRejected);
}

TEST_F(KeyHandshake, AWrongKeyIsRefusedOnBothSides) {
  const std::pair<const char*, const char*> wrong[] = {
      {"new 000102030405060708090a0b0c0d0e0e\n",
       "did not prove that it has the key new"},  // The client sees that it is another.
      {"newer 000102030405060708090a0b0c0d0e0f\n", "the server refused the key newer"},
  };
  for (const auto& [file, says] : wrong) {
    const Ends ends = connect(key_of(file));
    ASSERT_STATUS(ends.client, Status::kNotAllowed);
    EXPECT_TRUE(contains(ends.client.error(), says)) << ends.client.error().text();
    EXPECT_STATUS(ends.server, Status::kRejected);
  }
}

// Neither side goes without where the other one has keys.
TEST_F(KeyHandshake, AKeyOnOneSideAlone) {
  Ends ends = connect(nullptr);
  ASSERT_STATUS(ends.client, Status::kNotAllowed);
  EXPECT_TRUE(contains(ends.client.error(), "key_file")) << ends.client.error().text();
  EXPECT_STATUS(ends.server, Status::kRejected);
  listen(nullptr);
  ends = connect(key_of(kServersFile));
  ASSERT_STATUS(ends.client, Status::kNotAllowed);
  EXPECT_TRUE(contains(ends.client.error(), "key_file")) << ends.client.error().text();
  EXPECT_STATUS(ends.server, Status::kRejected);
  ends = connect(nullptr);
  EXPECT_OK(ends.client);
  ASSERT_OK(ends.server);
  EXPECT_EQ(*ends.server, "");
}

TEST_F(KeyHandshake, ARelayThatChangesNothingIsAWire) {
  const Ends ends = connect_through(no_edit);
  EXPECT_OK(ends.client);
  EXPECT_OK(ends.server);
}

// The last message's sender has nothing to wait for: it hears by the lifeline that the other side is gone.
TEST_F(KeyHandshake, EachByteThatIsChangedIsRefused) {
  client_end_ = make_endpoint(1, 3);
  server_end_ = make_endpoint(2, 3);
  for (int message = 0; message < kMessages; ++message) {
    std::size_t size = 1;
    for (std::size_t at = 0; at < size; ++at) {
      SCOPED_TRACE(fmt::format("byte {} of message {}", at, message));
      const Ends ends = connect_through([&](int number, Bytes& bytes) {
        if (number != message) return;
        size = bytes.size();
        bytes[at] ^= std::byte{1};
        if (at < bytes.size() - kChecksumBytes) make_checksum(bytes);
      });
      EXPECT_FALSE(ends.client);
      if (message + 1 < kMessages) {
        EXPECT_FALSE(ends.server);
      }
    }
    EXPECT_GT(size, kHeaderBytes + kChecksumBytes);
  }
}

TEST_F(KeyHandshake, EachMessageThatIsCutIsRefused) {
  for (int message = 0; message < kMessages; ++message)
    for (const std::size_t cut : {std::size_t{1}, kChecksumBytes, kSealBytes + kChecksumBytes}) {
      SCOPED_TRACE(fmt::format("{} bytes off message {}", cut, message));
      const Ends ends = connect_through([&](int number, Bytes& bytes) {
        if (number == message) bytes.resize(bytes.size() - cut);
      });
      EXPECT_FALSE(ends.client);
      if (message + 1 < kMessages) {
        EXPECT_FALSE(ends.server);
      }
    }
}

/// A whole, well-formed message of another handshake, or nothing of the seal, in place of the right one.
TEST_F(KeyHandshake, ASealThatIsLeftOutIsRefused) {
  for (int message = 1; message < kMessages; ++message) {
    const Ends ends = connect_through([&](int number, Bytes& bytes) {
      if (number != message) return;
      const Frame open = number == 1  ? encode_challenge({})
                         : number < 4 ? encode_hello(number == 2 ? client_end_ : server_end_)
                                      : encode_ready(number == 4 ? client_end_.generation : server_end_.generation);
      bytes.assign(open.bytes().begin(), open.bytes().end());
    });
    EXPECT_FALSE(ends.client) << message;
    if (message + 1 < kMessages) {
      EXPECT_FALSE(ends.server) << message;
    }
  }
}

TEST_F(KeyHandshake, AReplayIsRefused) {
  std::mutex mutex;
  std::vector<Bytes> heard(kMessages);
  const Ends ends = connect_through([&](int number, Bytes& bytes) {
    const std::lock_guard lock(mutex);
    heard[static_cast<std::size_t>(number)] = bytes;
  });
  ASSERT_OK(ends.client);
  ASSERT_OK(ends.server);
  Frame claim;
  claim.size = heard[0].size();
  std::ranges::copy(heard[0], claim.data.begin());
  const Challenged client = challenged(claim);
  EXPECT_FALSE(std::ranges::equal(client.challenge.bytes(), heard[1]));  // Of a number that is new.
  EXPECT_STATUS(refusal_of(client, heard[2]), Status::kNotAllowed);
  // And to a client, what a server once said.
  EXPECT_STATUS(answered_by(heard[1]), Status::kNotAllowed);
}

// A client tells its endpoint to nobody who has not proven the key.
TEST_F(KeyHandshake, AServerThatHasNoKeyIsToldNothing) {
  const Frame made_up = with_room_for_seal(encode_challenge({std::byte{9}}));
  const auto dialed = answered_by({made_up.bytes().begin(), made_up.bytes().end()});
  ASSERT_STATUS(dialed, Status::kNotAllowed);
  EXPECT_TRUE(contains(dialed.error(), "did not prove that it has the key new")) << dialed.error().text();
}

// What has the server's seal is not good as the client's.
TEST_F(KeyHandshake, AReflectionIsRefused) {
  {
    const Challenged client = challenged(encode_key("new", {}));
    EXPECT_STATUS(refusal_of(client, client.challenge.bytes()), Status::kPeerLost);  // No client sends that.
  }
  {
    const Challenged client = challenged(encode_key("new", {}));
    Frame hello = with_room_for_seal(encode_hello(client_end_));
    set_seal(hello, seal_of(client.challenge.bytes()));
    EXPECT_STATUS(refusal_of(client, hello.bytes()), Status::kNotAllowed);
  }
  const RawServer mirror([&](int peer) {
    for (int i = 0; i < 2; ++i) {
      const auto frame = read_frame(peer);
      if (frame) send_raw(peer, frame->bytes());
    }
  });
  EXPECT_STATUS(be_client(mirror.port(), key_of(kServersFile)), Status::kProtocol);
  // The client's READY in place of the server's.
  Bytes ready;
  const Ends ends = connect_through([&](int number, Bytes& bytes) {
    if (number == 4) ready = bytes;
    if (number == 5) bytes = ready;
  });
  EXPECT_FALSE(ends.client);
}

// Whoever names the same key by the same number is challenged anew, and by another number.
TEST_F(KeyHandshake, NoChallengeComesTwice) {
  const Challenged first = challenged(encode_key("new", {}));
  const Challenged second = challenged(encode_key("new", {}));
  EXPECT_FALSE(std::ranges::equal(first.challenge.bytes(), second.challenge.bytes()));
}

TEST_F(KeyHandshake, AServerThatSkipsTheChallengeIsRefused) {
  const RawServer imposter([&](int peer) {
    (void)read_frame(peer);
    send_raw(peer, encode_hello(server_end_).bytes());
    await_end(peer);
  });
  EXPECT_STATUS(be_client(imposter.port(), key_of(kServersFile)), Status::kProtocol);
}

// Nothing of an endpoint is told before the proof: a client's first frame, and the server's, have names and numbers
// only.
TEST_F(KeyHandshake, NothingIsToldBeforeTheProof) {
  std::mutex mutex;
  std::vector<Bytes> heard(kMessages);
  const Ends ends = connect_through([&](int number, Bytes& bytes) {
    const std::lock_guard lock(mutex);
    heard[static_cast<std::size_t>(number)] = bytes;
  });
  ASSERT_OK(ends.client);
  EXPECT_EQ(decode_key(heard[0]).value().name(), "new");
  EXPECT_EQ(heard[0].size(), kHeaderBytes + kKeyFixedBytes + 3 + kChecksumBytes);
  EXPECT_OK(decode_challenge(heard[1]));
  EXPECT_NE(decode_key(heard[0]).value().nonce, decode_challenge(heard[1]).value());
  std::set<std::uint8_t> types;
  for (const Bytes& frame : heard) types.insert(std::to_integer<std::uint8_t>(frame[6]));
  EXPECT_EQ(types, (std::set<std::uint8_t>{1, 3, 4, 5}));
}

// Who names a key and goes no further holds what a silent socket holds, and no longer.
TEST_F(KeyHandshake, SilenceAfterTheChallengeCostsASlotForItsTime) {
  listen(parsed(kServersFile), {.max_pending = 2, .hello_timeout = std::chrono::milliseconds(50)});
  const Challenged silent = challenged(encode_key("new", {}));
  const Deadline deadline = generous();
  while (listener_->dropped() == 0 && !deadline.passed()) EXPECT_FALSE(listener_->next(brief()));
  EXPECT_EQ(listener_->dropped(), 1U);
  await_end(silent.socket.get());
  // And more of them than there are slots push each other out.
  listen(parsed(kServersFile), {.max_pending = 1});
  const Challenged first = challenged(encode_key("new", {}));
  const Challenged second = challenged(encode_key("new", {}));
  EXPECT_EQ(listener_->dropped(), 1U);
  await_end(first.socket.get());
  Seal seal(key_of(kServersFile), encode_key("new", {}).bytes());
  ASSERT_TRUE(seal.check(SealedStep::kChallenge, second.challenge.bytes()));
  send_raw(second.socket.get(), seal.put(SealedStep::kClientHello, encode_hello(client_end_)).bytes());
  EXPECT_OK(next());
}

TEST_F(KeyHandshake, AKeyThatIsNamedTwiceIsRefused) {
  const Challenged client = challenged(encode_key("new", {}));
  EXPECT_STATUS(refusal_of(client, encode_key("new", {}).bytes()), Status::kPeerLost);
}

}  // namespace
}  // namespace verbena::link
