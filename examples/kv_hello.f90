! Stores an array and text, and reads them back. Start a server first: verbena-kv serve
! usage: kv_hello [SERVER]      such as host:7470, or :7471 of this host; else port 7470 of this host
program kv_hello
  use verbena
  use, intrinsic :: iso_c_binding
  implicit none
  type(kv_client_t) :: store
  character(len=256) :: server
  character(len=:), allocatable :: text
  real(c_double) :: field(3, 4), back(3, 4)
  integer(c_size_t) :: bytes

  call get_command_argument(1, server)
  call check('kv_open', kv_open(server, store))
  call random_number(field)
  call check('kv_client_put', kv_client_put(store, 'field', 5_c_size_t, field, c_sizeof(field)))
  bytes = c_sizeof(back)
  call check('kv_client_get', kv_client_get(store, 'field', 5_c_size_t, back, bytes))
  print '(a, i0, 2a)', 'field: ', bytes, ' bytes, ', merge('the same', 'changed ', all(back == field))

  call check('kv_set', kv_set(store, 'greeting', 'hello'))
  call check('kv_get', kv_get(store, 'greeting', text))
  print '(2a)', 'greeting: ', text
  call check('kv_close', kv_close(store))
contains
  subroutine check(what, code)
    character(len=*), intent(in) :: what
    integer(c_int), intent(in) :: code
    if (code == KV_OK) return
    print *, what, ': ', kv_error_text(code)
    print *, kv_error_detail()
    stop 1, quiet=.true.
  end subroutine
end program kv_hello
