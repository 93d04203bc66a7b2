// A reliable queue pair is no unreliable one.
// expect: conversion|convert|no viable|no known
#include <verbena/queue_pair.hpp>

using namespace verbena;

typed::Ready<typed::Rc> other(typed::Ready<typed::Rc> reliable, typed::Ready<typed::Uc> unreliable) {
#ifdef WRONG
  (void)reliable;
  return unreliable;
#else
  (void)unreliable;
  return reliable;
#endif
}
