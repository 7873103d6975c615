// SPDX-License-Identifier: Apache-2.0
// c[64, 8192] = a[64, 2048] @ b[2048, 8192] on a 2 x 16 grid: a compute tile owns 32 rows and 512 columns of c and walks
// along K in blocks of 128, with its sum in f32.

#a = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 2047 >= 0)>
#b = affine_set<(d0, d1) : (d0 >= 0, -d0 + 2047 >= 0, d1 >= 0, -d1 + 8191 >= 0)>
#c = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 8191 >= 0)>
#a_tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#b_tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + 127 >= 0, d1 >= 0, -d1 + 511 >= 0)>
#c_tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 511 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>

module {
  func.func @matmul(%a: index, %b: index, %c: index) attributes {grid = [2, 16]} {
    %c0 = arith.constant 0 : index
    %step = arith.constant 128 : index
    %depth = arith.constant 2048 : index
    %height = arith.constant 32 : index
    %width = arith.constant 512 : index
    %id:2 = ktdp.get_compute_tile_id : index, index
    %m = arith.muli %id#0, %height : index
    %n = arith.muli %id#1, %width : index
    %A = ktdp.construct_memory_view %a, sizes: [64, 2048], strides: [2048, 1]
      {coordinate_set = #a, memory_space = #ktdp.memory_space<global>} : memref<64x2048xf16>
    %B = ktdp.construct_memory_view %b, sizes: [2048, 8192], strides: [8192, 1]
      {coordinate_set = #b, memory_space = #ktdp.memory_space<global>} : memref<2048x8192xf16>
    %C = ktdp.construct_memory_view %c, sizes: [64, 8192], strides: [8192, 1]
      {coordinate_set = #c, memory_space = #ktdp.memory_space<global>} : memref<64x8192xf16>
    %start = arith.constant dense<0.0> : tensor<32x512xf32>
    %sum = scf.for %k = %c0 to %depth step %step iter_args(%acc = %start) -> (tensor<32x512xf32>) {
      %at = ktdp.construct_access_tile %A[%m, %k] {access_tile_set = #a_tile, access_tile_order = #order}
        : memref<64x2048xf16> -> !ktdp.access_tile<32x128xindex>
      %bt = ktdp.construct_access_tile %B[%k, %n] {access_tile_set = #b_tile, access_tile_order = #order}
        : memref<2048x8192xf16> -> !ktdp.access_tile<128x512xindex>
      %x = ktdp.load %at : !ktdp.access_tile<32x128xindex> -> tensor<32x128xf16>
      %w = ktdp.load %bt : !ktdp.access_tile<128x512xindex> -> tensor<128x512xf16>
      %next = linalg.matmul ins(%x, %w : tensor<32x128xf16>, tensor<128x512xf16>)
        outs(%acc : tensor<32x512xf32>) -> tensor<32x512xf32>
      scf.yield %next : tensor<32x512xf32>
    }
    %result = arith.truncf %sum : tensor<32x512xf32> to tensor<32x512xf16>
    %ct = ktdp.construct_access_tile %C[%m, %n] {access_tile_set = #c_tile, access_tile_order = #order}
      : memref<64x8192xf16> -> !ktdp.access_tile<32x512xindex>
    ktdp.store %result, %ct : tensor<32x512xf16>, !ktdp.access_tile<32x512xindex>
    return
  }
}
