// The programs of the systems that Verbena replaces, by their names: kv_server, kv_client, application and client.
#pragma once

#include "programs/exit_code.hpp"

#include <verbena/kv.hpp>

namespace verbena::programs {

/// The port that rdma_kv's programs use where none is given.
inline constexpr std::uint16_t kRdmaKvPort = 12345;

/// rdma_kv's server: takes its command line, and prints what it prints. \thread main
[[nodiscard]] Exit run_kv_server(int argc, char** argv);
/// rdma_kv's client: a prompt with put, get, del, cas and bench. \thread main
[[nodiscard]] Exit run_kv_client(int argc, char** argv);
/// The server of the RDMA Key-Value Store. \thread main
[[nodiscard]] Exit run_application(int argc, char** argv);
/// Its client: throughput of values of 1 B to 16 MiB. \thread main
[[nodiscard]] Exit run_sweep_client(int argc, char** argv);

}  // namespace verbena::programs
