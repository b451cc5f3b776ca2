// Part of kci. GLIBC_2.30: to wait until a time of any clock. Older systems know that of one clock only, so that the
// time left by the given clock becomes a time of that one, as C++ libraries for such systems do; callers look at their
// own clock again afterwards.
#include "kci_call.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

namespace {

timespec kci_until(clockid_t clock, const timespec *until) {
  if (clock == CLOCK_REALTIME) return *until;
  timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += until->tv_sec - now.tv_sec;
  real.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (real.tv_nsec >= 1000000000) {
    real.tv_sec += 1;
    real.tv_nsec -= 1000000000;
  } else if (real.tv_nsec < 0) {
    real.tv_sec -= 1;
    real.tv_nsec += 1000000000;
  }
  return real;
}

}  // namespace

KCI_HIDDEN int kci_cond(pthread_cond_t *, pthread_mutex_t *, clockid_t, const timespec *) asm("pthread_cond_clockwait");
int kci_cond(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const timespec *until) {
  timespec real = kci_until(clock, until);
  return pthread_cond_timedwait(condition, mutex, &real);
}

#define KCI_LOCK(NEW, OLD, TYPE)                                           \
  KCI_HIDDEN int kci_##NEW(TYPE *, clockid_t, const timespec *) asm(#NEW); \
  int kci_##NEW(TYPE *what, clockid_t clock, const timespec *until) {      \
    timespec real = kci_until(clock, until);                               \
    return OLD(what, &real);                                               \
  }
KCI_LOCK(pthread_mutex_clocklock, pthread_mutex_timedlock, pthread_mutex_t)
KCI_LOCK(pthread_rwlock_clockrdlock, pthread_rwlock_timedrdlock, pthread_rwlock_t)
KCI_LOCK(pthread_rwlock_clockwrlock, pthread_rwlock_timedwrlock, pthread_rwlock_t)
KCI_LOCK(sem_clockwait, sem_timedwait, sem_t)
