// Node 20 lacks Promise.withResolvers, which js-libp2p calls while its modules load; so this is imported first.
Promise.withResolvers ??= function withResolvers () {
  let resolve
  let reject
  const promise = new this((onFulfilled, onRejected) => {
    resolve = onFulfilled
    reject = onRejected
  })
  return { promise, resolve, reject }
}
