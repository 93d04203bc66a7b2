// The other sides of ends_test.cpp and queue_pair_process_test.cpp, which are this program once more.
#pragma once

#include <string_view>

namespace verbena::rdma {

/// A listener that ends its connections in the way that a signal says. Its exit code.
int obey();

/// A queue pair of a type, "reliable" or "unreliable", whose peer's endpoint is given as numbers. Its exit code.
int be_queue_pair(std::string_view type, const char* numbers);

}  // namespace verbena::rdma
