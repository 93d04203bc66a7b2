// A small server, and random operations of a client against a map.
#pragma once

#include "transport.hpp"

#include <verbena/kv.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>

namespace verbena::kv::testing_support {

inline Key key_of(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

/// Small enough for a machine under load, with limits that tests reach.
inline ServerOptions small_server() {
  ServerOptions options;
  options.transport = test::transport_under_test();
  options.port = 0;
  options.memory_bytes = std::size_t{64} << 20;
  options.max_value_bytes = std::size_t{4} << 20;
  options.max_items = 20'000;
  options.max_clients = 8;
  options.grace = std::chrono::milliseconds{200};
  options.pin_workers = false;
  return options;
}

inline std::unique_ptr<Server> start(const ServerOptions& options) {
  auto server = Server::start(options);
  EXPECT_TRUE(server) << server.error().text();
  return server ? std::move(*server) : nullptr;
}

inline ClientOptions client_options(std::uint16_t port) {
  ClientOptions options;
  options.transport = test::transport_under_test();
  options.port = port;
  options.timeout = std::chrono::seconds{20};
  return options;
}
inline ClientOptions client_options(const Server& server) { return client_options(server.port()); }

inline std::unique_ptr<Client> connect(const ClientOptions& options) {
  auto client = Client::connect(options);
  EXPECT_TRUE(client) << client.error().text();
  return client ? std::move(*client) : nullptr;
}

/// Waits for what another thread is about to do. \return whether it came within 10 s
template <class Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::after(std::chrono::seconds{60});
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Random operations of one client on keys of its own, against a map.
inline void run_against_model(Client& client, const std::string& prefix, unsigned seed, int steps) {
  std::mt19937_64 random(seed);
  struct Known {
    std::string value;
    std::uint64_t version;
  };
  std::map<std::string, Known> model;
  std::string out(300'000, '\0');
  const auto registered = client.allocate(300'000);
  ASSERT_EQ(registered.size(), 300'000u);
  for (int step = 0; step < steps; ++step) {
    const std::string key = prefix + std::string(1 + random() % 30, static_cast<char>('a' + random() % 20));
    const auto known = model.find(key);
    const std::uint64_t current = known == model.end() ? 0 : known->second.version;
    switch (random() % 6) {
      case 0: {
        ASSERT_EQ(client.erase(key_of(key)).status, current == 0 ? Status::kNotFound : Status::kOk);
        if (current != 0) model.erase(known);
        break;
      }
      case 1:
      case 2: {
        constexpr std::size_t kSizes[] = {0, 1, 64, 1000, 4095, 4096, 4097, 30'000, 262'144, 290'000};
        std::string value(kSizes[random() % std::size(kSizes)], static_cast<char>('A' + random() % 26));
        if (!value.empty()) value.back() = static_cast<char>(step);
        const bool compares = random() % 2 == 0;
        const std::uint64_t expected = random() % 3 == 0 ? 1 + random() % 10 : current;
        std::span<const std::byte> from = bytes_of(value);
        if (random() % 2 == 0 && !value.empty()) {
          std::memcpy(registered.data(), value.data(), value.size());
          from = registered.first(value.size());
        }
        const Outcome outcome = compares ? client.cas(key_of(key), expected, from) : client.put(key_of(key), from);
        if (compares && expected != current) {
          ASSERT_EQ(outcome.status, current == 0 ? Status::kNotFound : Status::kVersionMismatch);
          ASSERT_EQ(outcome.version, current);
          break;
        }
        ASSERT_EQ(outcome.status, Status::kOk);
        ASSERT_GT(outcome.version, current);
        model[key] = {value, outcome.version};
        break;
      }
      default: {
        const std::span<std::byte> into = random() % 2 == 0 ? registered : std::as_writable_bytes(std::span(out));
        const Outcome outcome = client.get(key_of(key), into);
        ASSERT_EQ(outcome.status, current == 0 ? Status::kNotFound : Status::kOk);
        if (current == 0) break;
        ASSERT_EQ(outcome.version, current);
        ASSERT_EQ(outcome.length, known->second.value.size());
        ASSERT_EQ(std::memcmp(into.data(), known->second.value.data(), outcome.length), 0) << key;
      }
    }
  }
  for (const auto& [key, known] : model) ASSERT_EQ(client.erase(key_of(key)).status, Status::kOk);
}

}  // namespace verbena::kv::testing_support
