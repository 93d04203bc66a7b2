// The other side of ends_test.cpp, which is this program once more.
#pragma once

namespace verbena::test {

/// A server that ends its connections in the way that a signal says. Its exit code.
int obey();

}  // namespace verbena::test
